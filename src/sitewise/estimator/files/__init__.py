"""Models as folders, cards and ONNX graphs; these know the classifiers, which call them only when asked to save."""
