//go:build linux || darwin || freebsd

package bolt

import (
	"io/fs"
	"math"

	"golang.org/x/sys/unix"
)

// diskFree returns the number of bytes that this process may still write to the disk of path.
func diskFree(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	free := uint64(st.Bavail) * uint64(st.Bsize)
	return int64(min(free, math.MaxInt64)), nil
}

// modeTooWide reports whether users other than the owner can access a file with this mode.
func modeTooWide(m fs.FileMode) bool { return m.Perm()&0o077 != 0 }

// mapAhead is the default of Config.InitialMmapSize: 4 GiB, or 0 on 32-bit systems. Mapping beyond the end of a file
// costs only address space.
const mapAhead = (4 << 30) * (math.MaxInt >> 62)
