"""The mGBA core, by either of two doors, behind one class.

    emulator = Emulator(rom_path)              # backend "auto"
    emulator.run(frames, keys)                 # keys: the sum of the bits in KEYS that are held
    emulator.press(keys, hold, release)        # the same for a whole step, drawn only where somebody looks
    emulator.frame()                           # (160, 240, 3) uint8
    emulator.read(0x02000000, 256); emulator.write(...); state = emulator.save(); emulator.load(state)

`libretro` is the core that comes inside the wheel of stable-retro, spoken to through its C interface; `libmgba` is the
`mgba` package where the system has libmgba. Colours differ a little between the two (RGB565 against RGB888), so data of
one is never mixed with the other's: `emulator.backend` says which it is. A libretro core keeps one game in global
variables; every emulator therefore loads a copy of the library of its own, and as many as one likes live in one
process."""

import _ctypes
import ctypes
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path

import numba
import numpy as np

HEIGHT, WIDTH = 160, 240
KEYS = {name: 1 << bit for bit, name in enumerate("A B SELECT START RIGHT LEFT UP DOWN R L".split())}
BACKENDS = ("libretro", "libmgba")
RAM_REGIONS = {0x02000000: 0x40000, 0x03000000: 0x8000}
MIN_ROM, MAX_ROM = 0xC0, 32 * 1024 * 1024


def read_rom(path):
    """→ (bytes, SHA-1) of a cartridge; anything that cannot be one is refused, because the core would run it
    silently."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the path of a .gba file.")
    try:
        rom = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"There is no ROM at {path}. Give the path of a .gba file, or none for the quest that comes along."
        ) from None
    if len(rom) == 0:
        raise ValueError(f"The ROM {path} is empty; copy it again.")
    if len(rom) < MIN_ROM:
        raise ValueError(
            f"The ROM {path} has {len(rom)} bytes, less than a GBA header (192); it is truncated or something else."
        )
    if len(rom) > MAX_ROM:
        raise ValueError(
            f"The ROM {path} has {len(rom):,} bytes; a GBA cartridge has at most {MAX_ROM:,}. It is not a GBA ROM."
        )
    # 0x96 at 0xB2 is the one byte that every header has; the first word is a branch
    if rom[0xB2] != 0x96 or rom[3] != 0xEA:
        raise ValueError(
            f"The ROM {path} has no GBA header (0x96 at offset 0xB2, a branch at 0); it is damaged or not a GBA ROM."
        )
    # dumps are cut to powers of two; homebrew may be any size below a megabyte
    if len(rom) >= 1 << 20 and len(rom) & (len(rom) - 1):
        raise ValueError(
            f"The ROM {path} has {len(rom):,} bytes, which is no power of two: it is truncated. Dump or copy it again."
        )
    return rom, hashlib.sha1(rom).hexdigest()


def libretro_core():
    """→ path of the core inside stable-retro. The package itself is not imported: it would load all its consoles."""
    spec = importlib.util.find_spec("stable_retro")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            "The backend 'libretro' needs stable-retro, which is not installed: pip install -r requirements.txt"
        )
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    path = Path(next(iter(spec.submodule_search_locations))) / "cores" / f"mgba_libretro{suffix}"
    if not path.exists():
        raise RuntimeError(f"stable-retro is installed, but its mGBA core is not at {path}: install it again with pip.")
    return path


def choose_backend(backend):
    """'auto' is the core from stable-retro, so that everybody gets the same colours; nothing is replaced behind one's
    back."""
    if backend == "auto":
        return "libretro"
    if backend not in BACKENDS:
        raise ValueError(f"There is no emulator backend {backend!r}; choose one of auto, {', '.join(BACKENDS)}.")
    return backend


class Emulator:
    def __init__(self, rom_path, backend="auto"):
        self.backend = choose_backend(backend)
        rom, self.rom_sha1 = read_rom(rom_path)
        # saves are written beside the ROM, so it runs from a folder of its own
        self.folder = tempfile.mkdtemp(prefix="cleanrl_games_gba_")
        self._cleanup = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        copy = Path(self.folder) / "rom.gba"
        copy.write_bytes(rom)
        try:
            self.core = (Libretro if self.backend == "libretro" else LibMgba)(copy, Path(self.folder))
        except BaseException:
            self._cleanup()
            raise
        self._take(self.core)
        self.stamp = self.save()[:12]
        if os.name == "posix":  # what is mapped or open outlives its name, and a killed process leaves nothing behind
            self._cleanup()

    def _take(self, core):
        """The core's own methods, without a call in between."""
        self.run, self.press, self.frame, self.save = core.run, core.press, core.frame, core.save

    def load(self, state):
        """Back to a state of `save`. Run a frame before looking: a state has no picture."""
        # versions, BIOS and cartridge of a state are its first 12 bytes; the core itself would load any bytes of the
        # right length
        if state[:12] != self.stamp:
            raise ValueError(
                f"These {len(state):,} bytes are no save state of this ROM and this version of the mGBA core."
            )
        self.core.load(state)

    def _check_range(self, address, size):
        base = address & 0xFF000000
        if base not in RAM_REGIONS or size < 0 or address - base + size > RAM_REGIONS[base]:
            raise ValueError(
                f"The address range {address:#010x}+{size} is not in the work RAM (0x02000000 to 0x0203ffff, "
                f"0x03000000 to 0x03007fff)."
            )
        return base, address - base

    def read(self, address, size):
        base, offset = self._check_range(address, size)
        return self.core.read(base, offset, size)

    def write(self, address, data):
        base, offset = self._check_range(address, len(data))
        self.core.write(base, offset, bytes(data))

    def close(self):
        self.core.close()
        self.core = Closed()
        self._take(self.core)
        self._cleanup()


class Closed:
    """Stands in for a core that is gone: calling into its library would end the process without a word."""

    def close(self):
        pass

    def run(self, *_):
        raise RuntimeError("This emulator is closed.")

    press = frame = save = load = read = write = run


# What follows speaks libretro.h: numbers of commands and layouts of structs are that header's.
ENVIRONMENT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_uint, ctypes.c_void_p)
VIDEO = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t)
AUDIO = ctypes.CFUNCTYPE(None, ctypes.c_int16, ctypes.c_int16)
AUDIO_BATCH = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
POLL = ctypes.CFUNCTYPE(None)
INPUT = ctypes.CFUNCTYPE(ctypes.c_int16, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
GET_SYSTEM_DIRECTORY, SET_PIXEL_FORMAT, GET_VARIABLE, GET_VARIABLE_UPDATE, GET_SAVE_DIRECTORY, SET_MEMORY_MAPS = (
    9,
    10,
    15,
    17,
    31,
    36 | 0x10000,
)
PIXEL_FORMAT_RGB565 = 2
# libretro's joypad, in its order, as bits of the GBA's key register
JOYPAD = [KEYS.get(name, 0) for name in "B - SELECT START UP DOWN LEFT RIGHT A - L R".split()]


class GameInfo(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p),
        ("data", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("meta", ctypes.c_char_p),
    )


class Variable(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_char_p))


class MemoryDescriptor(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("ptr", ctypes.c_void_p),
        *((name, ctypes.c_size_t) for name in ("offset", "start", "select", "disconnect", "len")),
        ("addrspace", ctypes.c_char_p),
    )


class MemoryMap(ctypes.Structure):
    _fields_ = (("descriptors", ctypes.POINTER(MemoryDescriptor)), ("count", ctypes.c_uint))


@numba.njit(cache=True)
def rgb565_to_rgb(rows, picture):
    """The core's 16-bit pixels as RGB; 15 times as fast as indexing a table of colours with numpy."""
    for y in range(HEIGHT):
        for x in range(WIDTH):
            word = rows[y, x]
            red, green, blue = word >> 11, word >> 5 & 63, word & 31
            picture[y, x, 0] = red << 3 | red >> 2
            picture[y, x, 1] = green << 2 | green >> 4
            picture[y, x, 2] = blue << 3 | blue >> 2


OPTIONS = {b"mgba_skip_bios": b"ON", b"mgba_use_bios": b"OFF", b"mgba_sgb_borders": b"OFF"}


class Libretro:
    def __init__(self, rom, folder):
        library = folder / "core.so"
        shutil.copyfile(libretro_core(), library)  # dlopen shares a file it knows; a copy has its own globals
        self.library = ctypes.CDLL(
            str(library), mode=os.RTLD_LOCAL | os.RTLD_NOW if hasattr(os, "RTLD_LOCAL") else ctypes.DEFAULT_MODE
        )
        self.folder, self.keys, self.regions, self.pixel_format = str(folder).encode(), 0, {}, 0
        self.frameskip, self.is_updated = b"0", False
        # ctypes frees callbacks nobody holds, and the core would call into nothing
        self.callbacks = {
            "environment": ENVIRONMENT(self._environment),
            "video_refresh": VIDEO(self._video),
            "audio_sample": AUDIO(lambda left, right: None),
            "audio_sample_batch": AUDIO_BATCH(lambda data, frames: frames),
            "input_poll": POLL(lambda: None),
            "input_state": INPUT(self._input),
        }
        for name, callback in self.callbacks.items():
            getattr(self.library, f"retro_set_{name}")(callback)
        self.library.retro_init()
        data = rom.read_bytes()
        self.library.retro_load_game.restype = ctypes.c_bool
        if not self.library.retro_load_game(ctypes.byref(GameInfo(str(rom).encode(), data, len(data), None))):
            raise ValueError("The mGBA core refused the ROM: it is damaged or not a GBA ROM.")
        if self.pixel_format != PIXEL_FORMAT_RGB565:
            raise RuntimeError(
                f"The mGBA core speaks pixel format {self.pixel_format}, RGB565 (2) was expected: use stable-retro "
                f"1.0.1."
            )
        missing = [hex(base) for base in RAM_REGIONS if base not in self.regions]
        if missing:
            raise RuntimeError(
                f"The mGBA core did not say where its RAM is ({', '.join(missing)}): use stable-retro 1.0.1."
            )
        self.library.retro_serialize_size.restype = ctypes.c_size_t
        self.library.retro_serialize.argtypes = self.library.retro_unserialize.argtypes = (
            ctypes.c_void_p,
            ctypes.c_size_t,
        )
        self.library.retro_serialize.restype = self.library.retro_unserialize.restype = ctypes.c_bool
        self.retro_run, self.state_size = self.library.retro_run, self.library.retro_serialize_size()

    def _environment(self, command, data):
        if command == SET_PIXEL_FORMAT:
            self.pixel_format = ctypes.cast(data, ctypes.POINTER(ctypes.c_int))[0]
            return self.pixel_format == PIXEL_FORMAT_RGB565
        if command in (GET_SYSTEM_DIRECTORY, GET_SAVE_DIRECTORY):
            ctypes.cast(data, ctypes.POINTER(ctypes.c_char_p))[0] = self.folder
            return True
        if command == GET_VARIABLE:
            variable = ctypes.cast(data, ctypes.POINTER(Variable))[0]
            variable.value = self.frameskip if variable.key == b"mgba_frameskip" else OPTIONS.get(variable.key)
            return variable.value is not None
        if command == GET_VARIABLE_UPDATE:
            ctypes.cast(data, ctypes.POINTER(ctypes.c_bool))[0] = self.is_updated
            self.is_updated = False
            return True
        if command == SET_MEMORY_MAPS:
            table = ctypes.cast(data, ctypes.POINTER(MemoryMap))[0]
            for descriptor in table.descriptors[: table.count]:
                if descriptor.start in RAM_REGIONS:
                    self.regions[descriptor.start] = descriptor.ptr + descriptor.offset
            return True
        return False

    def _video(self, data, width, height, pitch):
        self.shown = data, pitch

    def _input(self, port, device, index, button):
        if port or device != 1:
            return 0
        return int(bool(self.keys & JOYPAD[button])) if button < len(JOYPAD) else 0

    def run(self, frames, keys=0):
        self.keys = keys
        for _ in range(frames):
            self.retro_run()

    def _skip(self, frames):
        self.frameskip, self.is_updated = str(frames).encode(), True

    def press(self, keys, hold, release):
        """Drawing is a third of the work, and a step shows its last frame only.

        The core draws, then leaves out as many frames as it was told: told so for the first frame, it draws that one
        and the last; told not to for the second, it draws everything again after that.
        """
        if hold + release < 4:
            self.run(hold, keys)
            self.run(release)
            return
        self._skip(hold + release - 2)
        self.keys = keys
        for index in range(hold + release):
            if index == 1:
                self._skip(0)
            if index == hold:
                self.keys = 0
            self.retro_run()

    def frame(self):
        address, pitch = self.shown
        rows = np.frombuffer((ctypes.c_char * (pitch * HEIGHT)).from_address(address), np.uint16).reshape(
            HEIGHT, pitch // 2
        )
        picture = np.empty((HEIGHT, WIDTH, 3), np.uint8)
        rgb565_to_rgb(rows, picture)
        return picture

    def save(self):
        buffer = ctypes.create_string_buffer(self.state_size)
        if not self.library.retro_serialize(buffer, self.state_size):
            raise RuntimeError("The mGBA core could not save its state.")
        return buffer.raw

    def load(self, state):
        # This core forgets its sprites on a load and looks again only at those whose attributes (at 0xC00 of a state)
        # change: a first load with others makes the second one change them all.
        changed = state[:0xC00] + bytes(byte ^ 255 for byte in state[0xC00:0x1000]) + state[0x1000:]
        if len(state) != self.state_size or not all(
            self.library.retro_unserialize(data, len(data)) for data in (changed, state)
        ):
            raise ValueError(
                f"This save state ({len(state)} bytes) is not one of this ROM on the backend 'libretro' "
                f"({self.state_size} bytes)."
            )

    def read(self, base, offset, size):
        return ctypes.string_at(self.regions[base] + offset, size)

    def write(self, base, offset, data):
        ctypes.memmove(self.regions[base] + offset, data, len(data))

    def close(self):
        self.library.retro_unload_game()
        self.library.retro_deinit()
        if os.name == "posix":
            _ctypes.dlclose(self.library._handle)  # ctypes itself never gives a library back


class LibMgba:
    """The `mgba` package. Its emulators are objects of their own, so several need no copies."""

    def __init__(self, rom, folder):
        try:
            import mgba.core
            import mgba.image
            import mgba.log
            from mgba._pylib import ffi, lib
        except ImportError as error:
            raise RuntimeError(
                f"The backend 'libmgba' needs the package mgba (pip install mgba) and the system's libmgba (apt-get "
                f"install libmgba0.10): {error}. "
                "The backend 'libretro' needs neither."
            ) from None
        mgba.log.silence()
        self.ffi, self.lib = ffi, lib
        self.core = mgba.core.load_path(str(rom))
        if self.core is None:
            raise ValueError("The mGBA core refused the ROM: it is damaged or not a GBA ROM.")
        self.image = mgba.image.Image(WIDTH, HEIGHT)
        self.core.set_video_buffer(self.image)
        self.core.reset()
        self.shown = np.frombuffer(ffi.buffer(self.image.buffer), np.uint8).reshape(HEIGHT, self.image.stride, 4)

    def run(self, frames, keys=0):
        self.core.set_keys(raw=keys)
        for _ in range(frames):
            self.core.run_frame()

    def press(self, keys, hold, release):
        self.run(hold, keys)
        self.run(release)

    def frame(self):
        return np.ascontiguousarray(self.shown[:, :WIDTH, :3])

    def save(self):
        return bytes(self.ffi.buffer(self.core.save_raw_state()))

    def load(self, state):
        if len(state) != self.core._core.stateSize(self.core._core) or not self.core.load_raw_state(
            self.ffi.from_buffer(state)
        ):
            raise ValueError(f"This save state ({len(state)} bytes) is not one of this ROM on the backend 'libmgba'.")

    def _block(self, base):
        size = self.ffi.new("size_t *")
        block = self.core._core.getMemoryBlock(self.core._core, base >> 24, size)
        return self.ffi.buffer(self.ffi.cast("char *", block), size[0])

    def read(self, base, offset, size):
        return bytes(self._block(base)[offset : offset + size])

    def write(self, base, offset, data):
        self._block(base)[offset : offset + len(data)] = data

    def close(self):
        self.core = None
