package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// A file that is too large is named with the limit, and is not sent.
func TestMESSUploadable(t *testing.T) {
	name := filepath.Join(t.TempDir(), "photo.jpg")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]string{thread.MaxUpload: "", 11 << 20: "photo.jpg is larger than 10 MiB, which is the most that can be delivered", thread.MaxUpload + 1: "photo.jpg is larger than 10 MiB, which is the most that can be delivered"} {
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
		err := messUploadable(name)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasSuffix(err.Error(), want) || exit.Code(err) != exit.Input) {
			t.Errorf("%d bytes: %v, want %q", size, err, want)
		}
	}
}
