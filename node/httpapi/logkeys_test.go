package httpapi

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// TestLogKeys holds the keys of a request's line to those that docs/operations.md promises.
func TestLogKeys(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `request` \\| (.*) \\|$").FindString(string(doc))
	log, lines := logTo()
	s := New(Config{Logger: log, Local: true})
	s.Echo().POST("/", func(c echo.Context) error { _, err := Body(c, 10); return err })
	ask(s.Handler(), "POST", "http://localhost/", "{", "Content-Type", "text/plain; broken", "Host", "localhost")
	ask(s.Handler(), "GET", "http://localhost/health", "", "Host", "localhost")
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
