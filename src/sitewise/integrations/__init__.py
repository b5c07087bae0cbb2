"""What connects saved models with other systems; each module imports its package only when it is called."""
