//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// errNotHere is the error of the measurements that exist only on Linux. Figures that need them are left out.
var errNotHere = fmt.Errorf("only measured on Linux: %w", errors.ErrUnsupported)

func processCPU(int) (time.Duration, error) { return 0, errNotHere }
func ownCPU() time.Duration                 { return 0 }
func resident(int) (int64, error)           { return 0, errNotHere }
func anonymous(int) (int64, error)          { return 0, errNotHere }
func wakeUps(int) (int64, error)            { return 0, errNotHere }
func syncData(f *os.File) error             { return f.Sync() }
