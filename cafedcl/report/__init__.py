"""Tables, the HTML report and figures, all made from run folders; nothing here loads PyTorch."""
