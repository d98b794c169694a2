//go:build !linux

package postgres

import "syscall"

// limitUnsent does nothing: this system has no such limit for a connection.
func limitUnsent(string, string, syscall.RawConn) error { return nil }
