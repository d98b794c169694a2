package bolt

import (
	"runtime"

	"go.etcd.io/bbolt"
)

// Hold locks the existing database at path until the caller calls release, even if the file is renamed. For a missing
// file, the error is fs.ErrNotExist; other errors match a sentinel of this package if one applies. On Windows, which
// cannot rename an open file, Hold only checks that no other process has the database open, and keeps no lock.
func Hold(path string) (release func(), err error) {
	none := func() {}
	if err := checkOffline(path); err != nil {
		return none, err
	}
	db, err := openBolt(path, &bbolt.Options{})
	if err != nil {
		return none, err
	}
	release = func() { _ = db.Close() } // nothing was written
	if runtime.GOOS == "windows" {
		release()
		return none, nil
	}
	return release, nil
}
