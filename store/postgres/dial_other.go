//go:build !linux

package postgres

import "syscall"

// limitUnconfirmed does nothing: this system has no such limit for a connection.
func limitUnconfirmed(string, string, syscall.RawConn) error { return nil }
