"""What the commands do, one file each; also the Python face, `import turnpoint as tp`."""
