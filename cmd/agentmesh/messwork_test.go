package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

// TestMESSUploadable: the error for a file that is too large names the file and the limit.
func TestMESSUploadable(t *testing.T) {
	name := filepath.Join(t.TempDir(), "photo.jpg")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for size, refused := range map[int64]bool{thread.MaxUpload: false, 11 << 20: true, thread.MaxUpload + 1: true} {
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
		err := checkUpload(name)
		if (err != nil) != refused || refused && (!goldentest.Says(t, "upload", strings.ReplaceAll(err.Error(), name, "photo.jpg")) || exit.Code(err) != exit.Input) {
			t.Errorf("%d bytes: %v, refused must be %t", size, err, refused)
		}
	}
}
