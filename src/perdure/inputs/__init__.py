"""From what people have on disk to rows and labels."""
