package mess

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread/threadtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestThreadFile: a version 1 file is read, imported, exported as version 2 and read back equal (MESS-46 to MESS-50).
func TestThreadFile(t *testing.T) {
	s := newHTTPLab(t, nil)
	const ref = "2026-02-01-001-a7xk"
	if got := s.importFile("", threadtest.Sample); got.Threads != 1 {
		t.Fatalf("imported: %+v", got)
	}
	if got := s.importFile("", threadtest.Sample); got.Threads != 0 || got.Existing != 1 {
		t.Errorf("imported again: %+v", got)
	}
	th := s.thread(ref)
	if th.Holder != "teague-phone" || th.ClientID != "check fridge" || !th.Updated.Equal(time.Date(2026, 2, 1, 10, 5, 0, 0, time.UTC)) || th.Serial != 2 {
		t.Errorf("thread = %+v", th)
	}
	s.executor("teague-phone")
	s.status("teague-phone", ref, "completed")
	out := s.want(200, "", "GET", "/owner/mess/exchange/export/"+ref+"?format=v2", "")
	files, _ := out.Get("files")
	text := files.At(0).GetStr("content")
	if files.At(0).GetStr("name") != "000-"+ref+".messe-af.yaml" || !strings.Contains(text, "status: completed") || !strings.Contains(text, `created: "2026-02-01T10:00:00.000Z"`) {
		t.Errorf("export = %s", out.JSON())
	}
	again, err := thread.ParseFiles([]byte(text))
	if err != nil || again.Thread.Status != thread.Completed || len(again.Thread.History) != 3 {
		t.Fatalf("read back: %+v, %v", again.Thread, err)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "---") && line != "---\n" || strings.HasPrefix(line, "...") || strings.ContainsAny(line, "&*!") {
			t.Errorf("a reader may stumble over %q", line)
		}
	}
	v1, _ := s.call("", "GET", "/owner/mess/exchange/export/"+ref, "", "Accept", "application/yaml")
	if v1 != 200 {
		t.Errorf("v1: %d", v1)
	}
	for _, ref := range []string{"../../etc/passwd", "/abs", "2026-02-01-001/../x", "CON", "", "2026-02-01-001-" + strings.Repeat("a", 300), "a\x00b"} {
		hostile := strings.Replace(threadtest.Sample, "ref: 2026-02-01-001-a7xk\n", fmt.Sprintf("ref: %q\n", ref), 1)
		s.importFile("ref: ", hostile)
	}
}

// importFile imports a thread file of the owner. wrong is part of the error, or "" if there must be none.
func (s *httpLab) importFile(wrong, text string) (end folder.ImportProgress) {
	s.t.Helper()
	name := filepath.Join(s.t.TempDir(), "thread.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	v := s.want(200, "", "POST", "/owner/mess/import", string(wire.MustMarshal(folder.ImportCall{Path: name})), "Content-Type", "application/json")
	if err := json.Unmarshal(v.JSON(), &end); err != nil || !end.Ended || (end.Error == "") != (wrong == "") || !strings.Contains(end.Error, wrong) {
		s.t.Errorf("the import ended with %+v, %v; want the error %q", end, err, wrong)
	}
	return end
}
