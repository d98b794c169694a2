package mess

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

// TestIfMatch: a PATCH with If-Match changes the thread only if it is as the caller read it (RFC 9110, section 13.1.1).
func TestIfMatch(t *testing.T) {
	s := newHTTPLab(t, nil)
	alice, bob := s.register("alice"), s.register("bob")
	ref := s.want(201, alice, "POST", "requests", `{"intent":"look"}`).GetStr("ref")
	path := "requests/" + ref
	etag := func(key string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.srv.URL+"/api/v1/exchanges/home/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := s.srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.Header.Get("ETag")
	}
	claim := func(status int, match string) {
		t.Helper()
		s.want(status, bob, "PATCH", path, `{"status":"claimed"}`, "If-Match", match)
	}
	if got := etag(alice); got != `"1"` || etag(bob) != got {
		t.Errorf("ETag = %s, want \"1\"", got)
	}
	for _, bad := range []string{"1", `"0"`, `"-1"`, `"01"`, `"x"`, `W/"1"`, `"1", "2"`, `""`, `"99999999999999999999"`} {
		claim(400, bad)
	}
	claim(412, `"2"`)
	claim(200, `"1"`)
	claim(412, `"1"`)
	s.want(200, bob, "PATCH", path, `{"mess":[{"status":{"code":"needs_confirmation","action":"buy milk"}}]}`)
	shown := etag(alice)
	s.want(200, bob, "PATCH", path, `{"mess":[{"status":{"code":"needs_confirmation","action":"sell the house"}}]}`)
	code, body := s.call(alice, "PATCH", path, `{"mess":[{"reply":{"re":"`+ref+`","confirm":true}}]}`, "If-Match", shown)
	if code != 412 || !goldentest.Says(t, "an old entity tag", body) {
		t.Errorf("%d %s", code, body)
	}
	if th := s.thread(ref); th.Status != thread.NeedsConfirmation || th.Confirmed {
		t.Errorf("the yes to the milk sold the house: %s", th.Status)
	}
	s.want(200, alice, "PATCH", path, `{"mess":[{"reply":{"re":"`+ref+`","confirm":true}}]}`, "If-Match", etag(alice))
	s.want(200, bob, "PATCH", path, `{"status":"completed"}`, "If-Match", "*")
	if th := s.thread(ref); th.Status != thread.Completed || !th.Confirmed {
		t.Errorf("the thread is %s", th.Status)
	}
	// only the owner sees the serial number in the body
	_, text := s.call("", "GET", "/owner/mess/exchange/"+path, "")
	if !strings.Contains(text, `"serial":6`) {
		t.Errorf("the owner reads %s", text)
	}
	if _, text := s.call(alice, "GET", path, ""); strings.Contains(text, "serial") {
		t.Errorf("a requester reads %s", text)
	}
}
