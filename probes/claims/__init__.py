"""What happens under the intervention that each claim of `findings` implies."""
