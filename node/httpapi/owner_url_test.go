package httpapi

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOwnerTokenInTheURL: a token in a URL is refused, because URLs end up in histories and logs (AM-77, THREATS 23).
func TestOwnerTokenInTheURL(t *testing.T) {
	dir := shortTempDir(t)
	o := startOwner(t, OwnerConfig{Dir: dir, Listen: "127.0.0.1:0"})
	text, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	base := "http://" + o.Addr().String() + "/owner/thing"
	for _, target := range []string{
		base + "?token=" + token, base + "?access_token=" + token, base + "?authorization=Bearer+" + token, base + "#" + token,
		strings.Replace(base, "http://", "http://owner:"+token+"@", 1),
	} {
		resp, err := http.Get(target)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d, want a refusal", strings.ReplaceAll(target, token, "TOKEN"), resp.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
