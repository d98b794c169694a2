package httpapi

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// TestLogKeys: the log line of a request has only the keys that docs/operations.md lists.
func TestLogKeys(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `request` \\| (.*) \\|$").FindString(string(doc))
	log, lines := newTestLog()
	s := New(Config{Logger: log, Local: true})
	s.Echo().POST("/", func(c echo.Context) error { _, err := Body(c, 10); return err })
	do(s.Handler(), "POST", "http://localhost/", "{", "Content-Type", "text/plain; broken", "Host", "localhost")
	do(s.Handler(), "GET", "http://localhost/health", "", "Host", "localhost")
	found := map[string]bool{}
	for _, key := range regexp.MustCompile(` ([a-z_]+)=`).FindAllStringSubmatch(lines.String(), -1) {
		if name := key[1]; name != "level" && name != "msg" && !found[name] {
			found[name] = true
			if !strings.Contains(row, "`"+name+"`") {
				t.Errorf("docs/operations.md does not name the key %s", name)
			}
		}
	}
	for _, key := range []string{"request_id", "method", "path", "route", "status", "bytes", "took", "client", "refused"} {
		if !found[key] {
			t.Errorf("no line has the key %s:\n%s", key, lines)
		}
	}
}
