package bolt

import (
	"io/fs"
	"math"

	"golang.org/x/sys/windows"
)

// diskFree returns the number of bytes that this process may still write to the disk of path.
func diskFree(path string) (int64, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &free, nil, nil); err != nil {
		return 0, err
	}
	return int64(min(free, math.MaxInt64)), nil
}

// modeTooWide always returns false: on Windows, access is governed by lists that the mode does not show.
func modeTooWide(fs.FileMode) bool { return false }

// mapAhead is the default of Config.InitialMmapSize. On Windows, a larger map would grow the file itself.
const mapAhead = 0
