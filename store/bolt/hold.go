package bolt

import (
	"runtime"

	"go.etcd.io/bbolt"
)

// Hold opens the existing database at path for nobody else: until release no process opens it, also where it was
// renamed meanwhile. The error is one of this package's sentinels where one fits, fs.ErrNotExist for a missing file.
// On Windows, which renames no open file, it only looks whether the database is free.
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
