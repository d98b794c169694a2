//go:build linux || darwin || freebsd

package bolt

import (
	"io/fs"
	"math"

	"golang.org/x/sys/unix"
)

// diskFree is the number of bytes that this process may still write beside path.
func diskFree(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	free := uint64(st.Bavail) * uint64(st.Bsize)
	return int64(min(free, math.MaxInt64)), nil
}

// modeTooWide says whether others than the owner may use a file.
func modeTooWide(m fs.FileMode) bool { return m.Perm()&0o077 != 0 }

// mapAhead is the default of Config.InitialMmapSize: mapping beyond the end of a file costs address space only.
const mapAhead = 4 << 30 * (math.MaxInt >> 62)
