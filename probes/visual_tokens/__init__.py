"""What the residual stream at visual tokens says, layer by layer, read by lenses."""
