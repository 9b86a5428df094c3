"""The row pass of fused draft losses, in torch and in Triton: the same numbers from the same logits."""
