package bolt

import (
	"io/fs"
	"math"

	"golang.org/x/sys/windows"
)

// diskFree is the number of bytes that this process may still write beside path.
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

// modeTooWide is never true: access is governed by lists that the mode does not show.
func modeTooWide(fs.FileMode) bool { return false }

// mapAhead is the default of Config.InitialMmapSize: here the file itself would be grown to it.
const mapAhead = 0
