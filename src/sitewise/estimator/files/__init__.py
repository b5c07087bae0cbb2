"""Models as folders, model cards and ONNX graphs; imported only when a model is saved, loaded or exported."""
