package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestMESSUploadable: the error for a file that is too large names the file and the limit.
func TestMESSUploadable(t *testing.T) {
	name := filepath.Join(t.TempDir(), "photo.jpg")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]string{thread.MaxUpload: "", 11 << 20: "photo.jpg is larger than the limit of 10 MiB", thread.MaxUpload + 1: "photo.jpg is larger than the limit of 10 MiB"} {
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
		err := checkUpload(name)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasSuffix(err.Error(), want) || exit.Code(err) != exit.Input) {
			t.Errorf("%d bytes: %v, want %q", size, err, want)
		}
	}
}
