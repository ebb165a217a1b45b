"""External data that is to be read into memory; left alone, ONNX Runtime maps it and copies what it packs anew."""

from pathlib import Path

import onnxruntime as ort


def read_external_data(options: ort.SessionOptions, path: Path, locations: frozenset[str]) -> list[bytes]:
    """Has the session of the graph at `path` take its external data from memory: the files' contents, which are to be
    kept for as long as the session lives.

    `locations`: as the graph names its files. ONNX Runtime does not ask where bytes in memory came from, so if any of
    them is outside the graph's folder, symbolic links followed, none is read: it then refuses the graph by itself.
    """
    folder = path.parent.resolve()
    files = {location: (folder / location).resolve() for location in sorted(locations)}
    is_inside = all(
        file.is_relative_to(folder) and not Path(location).is_absolute() for location, file in files.items()
    )
    if not files or not is_inside:
        return []
    contents = [file.read_bytes() for file in files.values()]
    options.add_external_initializers_from_files_in_memory([*files], contents, [len(each) for each in contents])
    return contents
