//go:build !windows

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestServeFails: if the program does not start, the error has what it printed.
func TestServeFails(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "agentmesh")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho 'agentmesh: the data directory is open to other users' >&2\nexit 78\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second log follows the first one
		_, err := agentmesh{program, dir}.serve(t.Context(), filepath.Join(dir, "data"))
		if err == nil || strings.Count(err.Error(), "is open to other users") != 1 {
			t.Errorf("the error is %v", err)
		}
	}
}
