package bolt

import (
	"runtime"

	"go.etcd.io/bbolt"
)

// Hold locks the existing database at path. Until the caller calls release, no process can open the database, even
// after a rename. The error is fs.ErrNotExist for a missing file, or matches a sentinel of this package if one applies.
// On Windows, which cannot rename an open file, Hold only checks that no other process has the database open, and keeps
// no lock.
func Hold(path string) (release func(), err error) {
	none := func() {}
	if err := checkOffline(path); err != nil {
		return none, err
	}
	db, err := openBolt(path, &bbolt.Options{Timeout: offlineWait, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
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
