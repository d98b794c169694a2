//go:build !linux

package bolt

import (
	"errors"
	"os"
)

// adviseRead reports that this system has no such advice.
func adviseRead(*os.File, int64, int64) error { return errors.ErrUnsupported }
