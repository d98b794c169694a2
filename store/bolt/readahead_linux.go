package bolt

import (
	"os"

	"golang.org/x/sys/unix"
)

// adviseRead starts to read a part of a file into the cache of the operating system.
func adviseRead(f *os.File, at, n int64) error {
	return unix.Fadvise(int(f.Fd()), at, n, unix.FADV_WILLNEED)
}
