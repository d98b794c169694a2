//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Here the system is asked nothing: figures that need it are left out.
var errNotHere = fmt.Errorf("only measured on Linux: %w", errors.ErrUnsupported)

func processCPU(int) (time.Duration, error) { return 0, errNotHere }
func ownCPU() time.Duration                 { return 0 }
func resident(int) (int64, error)           { return 0, errNotHere }
func wakeUps(int) (int64, error)            { return 0, errNotHere }
func syncData(f *os.File) error             { return f.Sync() }
