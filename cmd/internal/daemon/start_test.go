package daemon_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
)

// TestStartPage: a browser at / finds the way to the owner's page, without a code. Other clients and searches get what
// the directory answers.
func TestStartPage(t *testing.T) {
	for name, roles := range map[string]string{"both": "directory,node", "node": "node"} {
		t.Run(name, func(t *testing.T) {
			info, _ := runNew(t, config.Setting{Key: "roles", Value: roles})
			get := func(path, accept string) (int, string) {
				t.Helper()
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, info.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Accept", accept)
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, string(body)
			}
			if status, body := get("/", "text/html,*/*;q=0.8"); status != http.StatusOK || !strings.Contains(body, "<pre") || strings.Contains(body, "/owner/page") {
				t.Errorf("before the page is open: %d\n%s", status, body)
			}
			in, err := info.SignIn()
			if err != nil {
				t.Fatal(err)
			}
			if status, body := get("/", "text/html,*/*;q=0.8"); status != http.StatusOK || !strings.Contains(body, `href="`+in.URL+`"`) || strings.Contains(body, in.Code) {
				t.Errorf("with an open page: %d\n%s", status, body)
			}
			want := map[string]int{"both": http.StatusOK, "node": http.StatusNotFound}[name]
			if status, body := get("/", "*/*"); status != want || !strings.HasPrefix(body, "{") {
				t.Errorf("a program: %d\n%s", status, body)
			}
			if status, body := get("/?q=", "text/html"); status != want || strings.Contains(body, "runs here") {
				t.Errorf("a search: %d\n%s", status, body)
			}
		})
	}
}
