"""Pure text: sentences with exact offsets, and the windows made of them."""
