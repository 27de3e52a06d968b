"""The models behind one interface per modality."""
