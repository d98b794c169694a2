//go:build !linux

package bolt

import "os"

func syncData(f *os.File) error { return f.Sync() }
