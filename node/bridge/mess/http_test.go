package mess

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestShownThreadIsOfOneMoment: a thread is shown with the messages that led to its state and no later ones, even while
// somebody writes. A link that saw a message before its state believed that the message had no effect.
func TestShownThreadIsOfOneMoment(t *testing.T) {
	s := newHTTPLab(t, nil)
	alice, bob := s.register("alice"), s.register("bob")
	ref := s.want(201, alice, "POST", "requests", `{"intent":"look"}`).GetStr("ref")
	at := "/api/v1/exchanges/home/requests/" + ref
	s.want(200, bob, "PATCH", at, `{"status":"claimed"}`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			if status, text := s.call(bob, "PATCH", at, `{"mess":[{"status":{"re":"`+ref+`","code":"in_progress","message":"step `+strconv.Itoa(i)+`"}}]}`); status != http.StatusOK {
				t.Errorf("PATCH: %d %s", status, text)
				return
			}
		}
	}()
	defer func() { <-done }()
	for spoken := true; spoken; {
		select {
		case <-done:
			spoken = false // and once more
		default:
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.srv.URL+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+alice)
		resp, err := s.srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		v, fault := wire.Parse(text)
		thread, _ := v.Get("thread")
		messages, _ := thread.Get("messages")
		// the ack is not stored
		if want := `"` + strconv.Itoa(messages.Len()-1) + `"`; errors.Join(err, fault) != nil || resp.Header.Get("ETag") != want {
			t.Fatalf("%d messages are shown of %s, %v", messages.Len(), resp.Header.Get("ETag"), errors.Join(err, fault))
		}
	}
}

// TestREST: the routes of MESS section 10 with their keys, as clients read them.
func TestREST(t *testing.T) {
	s := newHTTPLab(t, nil)
	alice, bob, eve := s.register("alice"), s.register("bob"), s.register("eve")
	if !strings.HasPrefix(alice, "mess_home_") || len(alice) != len("mess_home_")+32 {
		t.Errorf("key = %q", alice)
	}
	made := s.want(201, alice, "POST", "requests", `{"intent":"look","context":["a",{"image":"https://x.example/a.jpg"}],"priority":"urgent","response_hints":["text"],
		"requires":["knife"],"needed_by":"2099-01-01T00:00:00Z","ref":"2020-01-01-001","status":"completed","created":"x","unknown":1,"id":"my id"}`)
	ref := made.GetStr("ref")
	if made.Len() != 2 || made.GetStr("status") != "pending" || !strings.HasSuffix(ref, "-001-my-id") {
		t.Fatalf("created = %s", made.JSON())
	}
	list, _ := s.want(200, bob, "GET", "requests", "").Get("threads")
	var keys []string
	for _, m := range list.At(0).Members() {
		keys = append(keys, m.Key)
	}
	if got := strings.Join(keys, " "); got != "ref status intent requestor_id executor_id priority created_at updated_at" {
		t.Errorf("summary has %s", got)
	}
	shown, _ := s.want(200, alice, "GET", "requests/"+ref+"/", "").Get("thread")
	messages, _ := shown.Get("messages")
	if messages.Len() != 2 || messages.At(1).GetStr("from") != "exchange" || !strings.Contains(string(messages.At(1).JSON()), `[{"ack":{"re":"my id","ref":"`+ref+`"}}]`) {
		t.Errorf("messages = %s", messages.JSON())
	}
	if first := string(messages.At(0).JSON()); !strings.Contains(first, `[{"v":"1.1.0"},{"request":`) || !strings.Contains(first, `"response_hint":["text"]`) || strings.Contains(first, "unknown") {
		t.Errorf("request = %s", first)
	}
	if got := s.want(200, bob, "PATCH", "requests/"+ref, `{"status":"claimed","message":"on my way"}`); got.GetStr("status") != "claimed" || got.GetStr("ref") != ref {
		t.Errorf("patched = %s", got.JSON())
	}
	s.want(409, eve, "PATCH", "requests/"+ref, `{"status":"claimed"}`)
	s.want(404, eve, "GET", "requests/"+ref, "")
	s.want(200, bob, "PATCH", "requests/"+ref, `{"mess":[{"status":{"re":"`+ref+`","code":"in-progress"}},{"status":{"code":"needs_input","message":"which one?"}}]}`)
	s.want(409, bob, "PATCH", "requests/"+ref, `{"status":"completed"}`)
	s.want(400, bob, "PATCH", "requests/"+ref, `{"status":"held","mess":[{"status":{"code":"failed"}}]}`)
	s.want(403, alice, "PATCH", "requests/"+ref, `{"status":"completed"}`)
	s.want(200, alice, "PATCH", "requests/"+ref, `{"mess":[{"answer":{"re":"`+ref+`","value":"the left one"}}]}`)
	s.want(200, bob, "PATCH", "requests/"+ref, `{"status":"completed","mess":[{"response":{"re":"`+ref+`","content":["done"]}}]}`)
	if got := s.want(200, bob, "PATCH", "requests/"+ref, `{"status":"completed"}`); got.GetStr("status") != "completed" {
		t.Errorf("unchanged = %s", got.JSON())
	}
	s.want(409, bob, "PATCH", "requests/"+ref, `{"status":"in_progress"}`)
	other := s.want(201, alice, "POST", "requests", `{"intent":"x","context":null}`).GetStr("ref")
	s.want(200, alice, "PATCH", "requests/"+other, `{"status":"cancelled"}`)
	s.want(400, alice, "PATCH", "requests/"+other, `{"status":"completed","mess":[{"status":{"re":"`+ref+`","code":"completed"}}]}`)
	executors, _ := s.want(200, alice, "GET", "executors", "").Get("executors")
	if executors.Len() != 3 || executors.At(0).GetStr("display_name") != "D" || executors.At(0).GetStr("id") != "alice" {
		t.Errorf("executors = %s", executors.JSON())
	}
	s.want(200, bob, "PATCH", "executors/bob", `{"capabilities":["spoon"],"preferences":{"min_priority":"urgent"}}`)
	s.want(403, bob, "PATCH", "executors/eve", `{"capabilities":[]}`)
	s.want(403, bob, "POST", "capabilities", "id: x\ndescription: y\n")
	s.want(200, "", "POST", "/owner/mess/exchange/capabilities", "id: take-photo\ndescription: Photos\ntags: [visual]\n---\nid: vacuum\ndescription: Floors\ntags: [cleaning]\n")
	if caps, _ := s.want(200, bob, "GET", "capabilities?tag=visual", "").Get("capabilities"); caps.Len() != 1 {
		t.Errorf("capabilities = %s", caps.JSON())
	}
	if caps, _ := s.want(200, eve, "GET", "capabilities", "").Get("capabilities"); !strings.Contains(string(caps.JSON()), `{"id":"spoon","description":""},{"id":"take-photo"`) {
		t.Errorf("capabilities = %s", caps.JSON())
	}
	if code, _ := s.call("", "OPTIONS", "anything", ""); code != 204 {
		t.Errorf("OPTIONS: %d", code)
	}
	if code, _ := s.call(alice, "HEAD", "requests", ""); code != 200 {
		t.Errorf("HEAD: %d", code)
	}
}

// TestKeys: the order of the checks, and the answers to wrong keys (MESS-53).
func TestKeys(t *testing.T) {
	s := newHTTPLab(t, nil)
	key := s.register("alice")
	for _, tt := range []struct {
		want             int
		auth, path, body string
	}{
		{400, "Bearer " + key, "/api/v1/exchanges/a_b/requests", ""},
		{401, "", "requests", ""},
		{401, "bearer " + key, "requests", ""},
		{401, "Bearer mess_home_" + strings.Repeat("0", 32), "requests", ""},
		{401, "Bearer " + strings.Repeat("a", 10_000), "requests", ""},
		{401, "Bearer mess_home_" + strings.Repeat("0", 10_000), "requests", ""},
		{403, "Bearer mess_other_" + strings.Repeat("0", 32), "requests", ""},
		{403, "Bearer " + key, "/api/v1/exchanges/other/requests", ""},
		{401, "", "nothing", ""},
		{404, "Bearer " + key, "nothing", ""},
		{404, "Bearer " + key, "requests/x/y/z/q", ""},
		{404, "Bearer " + key, "requests/2026-01-31-001", ""},
		{400, "Bearer " + key, "requests/..%2f..%2fetc", ""},
		{400, "Bearer " + key, "requests/a%00b", ""},
		{400, "Bearer " + key, "requests/" + strings.Repeat("a", 300), ""},
		{400, "Bearer " + key, "requests/%252e%252e", ""},
		{400, "Bearer " + key, "requests?status=nonsense", ""},
		{400, "Bearer " + key, "requests?after=nonsense", ""},
		{400, "Bearer " + key, "requests?limit=0", ""},
	} {
		if code, body := s.call("", "GET", tt.path, tt.body, "Authorization", tt.auth); code != tt.want {
			t.Errorf("GET %s with %.40s: %d %s, want %d", tt.path, tt.auth, code, body, tt.want)
		}
	}
	s.want(409, "", "POST", "register", `{"executor_id":"alice"}`)
	s.want(404, "", "POST", "/api/v1/exchanges/other/register", `{"executor_id":"carl"}`)
	for _, id := range []string{"", "-a", "a b", "owner", "Exchange", "am_abc", "../x", strings.Repeat("a", 65), "ü"} {
		s.want(400, "", "POST", "register", string(wire.Obj(wire.TextField("executor_id", id)).JSON()))
	}
	rec, err := s.store.Records().Get(t.Context(), registry.NSExecutors, "alice", time.Now())
	if err != nil || bytes.Contains(rec.Body, []byte(key)) || !bytes.Contains(rec.Body, []byte(credential.HashOf(key).String())) {
		t.Errorf("the record holds the key itself: %v", err)
	}
}

// TestWrongKeysAreThrottled: an address with wrong keys must wait, except with a right one. In the local profile, where
// all callers have one address, nothing is counted.
func TestWrongKeysAreThrottled(t *testing.T) {
	for _, local := range []bool{false, true} {
		s := newHTTPLab(t, nil)
		s.server.Local = local
		key := s.register("alice")
		for range credential.MaxFailures {
			s.want(401, "mess_home_"+strings.Repeat("0", 32), "GET", "requests", "")
		}
		want := 429
		if local {
			want = 401
		}
		s.want(want, "mess_home_"+strings.Repeat("0", 32), "GET", "requests", "")
		s.want(200, key, "GET", "requests", "")
	}
}

// TestWrongTypes: a wrong JSON type in any field is a 4xx, never a 5xx (MESS-54).
func TestWrongTypes(t *testing.T) {
	s := newHTTPLab(t, nil)
	key := s.register("alice")
	ref := s.want(201, key, "POST", "requests", `{"intent":"x"}`).GetStr("ref")
	values := []string{`null`, `true`, `0`, `-1.5`, `1e30`, `""`, `"x"`, `"\u0000"`, `[]`, `[1]`, `[null]`, `[[]]`, `{}`, `{"a":1}`, `[{}]`, `[{"a":1,"b":2}]`, `"2026-13-01T00:00:00Z"`}
	fields := map[string][]string{
		"POST requests":         {"intent", "id", "precision", "requires", "context", "response_hint", "priority", "compensation", "constraints", "needed_by", "confirm_before"},
		"POST register":         {"executor_id", "display_name", "capabilities", "notifications", "hooks", "preferences"},
		"PATCH executors/alice": {"display_name", "capabilities", "notifications", "hooks", "preferences"},
		"PATCH requests/" + ref: {"status", "message", "mess"},
	}
	for route, names := range fields {
		method, path, _ := strings.Cut(route, " ")
		for _, name := range names {
			for _, v := range values {
				body := `{"intent":"x","` + name + `":` + v + `}`
				if name == "intent" {
					body = `{"intent":` + v + `}`
				}
				if code, text := s.call(key, method, path, body); code >= 500 {
					t.Errorf("%s %s: %d %s", route, body, code, text)
				}
			}
		}
		for _, body := range []string{"", "[]", "null", "3", `"x"`, "{", `{"a":1,"a":2}`, "\xff", strings.Repeat("[", 100), `{"intent":"a` + "\x00" + `"}`} {
			if code, text := s.call(key, method, path, body); code < 400 || code >= 500 {
				t.Errorf("%s %q: %d %s", route, body, code, text)
			}
		}
		if code, _ := s.call(key, method, path, `{"intent":"`+strings.Repeat("x", thread.MaxDocument)+`"}`); code != 413 {
			t.Errorf("%s with more than 2 MiB: %d", route, code)
		}
	}
	for _, inner := range []string{`{"timing":3}`, `{"timing":{"expires":3}}`, `{"timing":{"not_before":"2h"}}`, `{"depends_on":"x"}`, `{"location":[]}`, `{"environment":3}`} {
		s.want(400, key, "POST", "requests", `{"intent":"x","constraints":`+inner+`}`)
	}
	s.want(400, key, "POST", "requests", `{"intent":"a\u0000b"}`)
	s.want(400, key, "POST", "requests", `{"intent":"a\u001bb"}`)
}

// TestPaging: pages have at most 1,000 threads, each thread once, the newest change first (MESS-52).
func TestPaging(t *testing.T) {
	s := newHTTPLab(t, nil)
	key := s.register("alice")
	for i := range 21 {
		var block strings.Builder
		for j := range 50 {
			fmt.Fprintf(&block, "- request: {intent: t%d}\n", i*50+j)
		}
		s.do("alice", block.String())
	}
	seen := map[string]bool{}
	page := s.want(200, key, "GET", "requests?limit=1001", "")
	list, _ := page.Get("threads")
	if list.Len() != 1000 {
		t.Fatalf("a page has %d threads", list.Len())
	}
	last := ""
	for pages := 1; ; pages++ {
		for e := range list.Elems() {
			if at := e.GetStr("updated_at"); last != "" && at > last {
				t.Fatalf("%s comes after %s", at, last)
			}
			last = e.GetStr("updated_at")
			seen[e.GetStr("ref")] = true
		}
		next := page.GetStr("next")
		if next == "" {
			break
		}
		page = s.want(200, key, "GET", "requests?limit=300&status=pending&after="+next, "")
		list, _ = page.Get("threads")
		if pages > 5 {
			t.Fatal("the pages do not end")
		}
	}
	if len(seen) != 1050 {
		t.Errorf("%d threads on all pages, want 1050", len(seen))
	}
}

// TestMessages: raw blocks in YAML and JSON, answered in the same format (MESS-59).
func TestMessages(t *testing.T) {
	s := newHTTPLab(t, nil)
	alice, bob := s.register("alice"), s.register("bob")
	post := func(key, kind, body string, headers ...string) (int, string) {
		return s.call(key, "POST", "messages", body, append([]string{"Content-Type", kind}, headers...)...)
	}
	code, text := post(alice, "application/yaml", "MESS:\n- request:\n    id: a\n    intent: look\n")
	if b := mustParse(t, text); code != 201 || b[0].Type != "ack" || !strings.HasPrefix(text, "MESS:") {
		t.Errorf("%d %s", code, text)
	}
	if code, text = post(alice, "application/json", `[{"request":{"intent":"two"}},{"request":{"intent":"three"}}]`); code != 201 || !strings.HasPrefix(text, `{"MESS":[{"ack":{"requests":[`) {
		t.Errorf("%d %s", code, text)
	}
	if code, text = post(bob, "text/yaml; charset=utf-8", "- status: {re: a, code: claimed}\n- query: {type: status, filter: {executor: bob}}\n", "Accept", "application/json"); code != 200 || !strings.Contains(text, `"status":"claimed"`) {
		t.Errorf("%d %s", code, text)
	}
	for _, tt := range []struct {
		want       int
		kind, body string
	}{
		{415, "text/plain", "- v: 1.0.0"}, {400, "application/yaml", "- request: {intent: x, priority: high}"}, {404, "application/yaml", "- cancel: {re: zzz}"},
		{409, "application/yaml", "- reply: {re: a, confirm: true}"}, {403, "application/yaml", "- config: {routing: {rules: []}}"},
		{413, "application/yaml", "a: " + strings.Repeat("x", thread.MaxDocument)}, {400, "application/json", "- v: 1.0.0"}, {400, "application/yaml", "a: &x [*x]"},
	} {
		code, text := post(alice, tt.kind, tt.body)
		if code != tt.want {
			t.Errorf("%s %.60s: %d %s, want %d", tt.kind, tt.body, code, text, tt.want)
		}
		var e struct{ Error string }
		if json.Unmarshal([]byte(text), &e) != nil || tt.body == "- request: {intent: x, priority: high}" && !strings.Contains(e.Error, "MESS[0].request.priority") {
			t.Errorf("%s: error = %q", tt.body, e.Error)
		}
	}
	if code, text := s.call("", "POST", "messages", "- v: 1.0.0", "Content-Type", "application/yaml"); code != 401 {
		t.Errorf("%d %s", code, text)
	}
}

// TestRegistrationModes: with approval a key waits, with invite a token is needed, and a limit says when to come back
// (MESS-57, MESS-58).
func TestRegistrationModes(t *testing.T) {
	s := newHTTPLab(t, func(c *exchange.Config) { c.Registration = "approval"; c.CallsPerMinute = 3 })
	key := s.register("alice")
	s.want(403, key, "GET", "requests", "")
	s.want(200, "", "POST", "/owner/mess/exchange/executors/alice/approve", "")
	for range 3 {
		s.want(200, key, "GET", "requests", "")
	}
	s.want(429, key, "GET", "requests", "")
	i := newHTTPLab(t, func(c *exchange.Config) {
		c.Registration, c.Invite = "invite", "secret"
		c.RegistrationsPerHour = 3
		c.ThreadsPerHour = 1
	})
	for range credential.MaxFailures / 2 {
		i.want(401, "", "POST", "register", `{"executor_id":"alice"}`)
		i.want(401, "wrong", "POST", "register", `{"executor_id":"alice"}`)
	}
	i.want(429, "wrong", "POST", "register", `{"executor_id":"alice"}`)
	i.want(400, "secret", "POST", "register", `{"executor_id":""}`)
	k := i.want(201, "secret", "POST", "register", `{"executor_id":"alice"}`).GetStr("api_key")
	i.want(409, "secret", "POST", "register", `{"executor_id":"alice"}`)
	i.want(201, "secret", "POST", "register", `{"executor_id":"carol"}`)
	i.want(201, "secret", "POST", "register", `{"executor_id":"dave"}`)
	i.want(429, "secret", "POST", "register", `{"executor_id":"bob"}`)
	i.want(201, k, "POST", "requests", `{"intent":"a"}`)
	i.want(429, k, "POST", "requests", `{"intent":"b"}`)
}

// TestAttachments: large inline data becomes an attachment, which only those who see the thread can save, and which no
// browser runs (MESS-58).
func TestAttachments(t *testing.T) {
	s := newHTTPLab(t, nil)
	alice, bob := s.register("alice"), s.register("bob")
	eve := s.want(201, "", "POST", "register", `{"executor_id":"eve"}`).GetStr("api_key")
	photo := bytes.Repeat([]byte{0xff, 0xd8, 0xff, 0xe0}, 30_000)
	body, err := json.Marshal(struct {
		Intent   string              `json:"intent"`
		Requires []string            `json:"requires"`
		Context  []map[string]string `json:"context"`
	}{"look", []string{"knife"}, []map[string]string{{"image": dataURI("image/jpeg", photo)}}})
	if err != nil {
		t.Fatal(err)
	}
	ref := s.want(201, alice, "POST", "requests", string(body)).GetStr("ref")
	_, text := s.call(bob, "GET", "requests/"+ref, "")
	at := strings.Index(text, "content://"+ref+"/")
	if at < 0 || strings.Contains(text, "base64") {
		t.Fatalf("thread = %.500s", text)
	}
	name, _, _ := strings.Cut(text[at+len("content://"+ref+"/"):], `"`)
	if code, got := s.call(bob, "GET", "requests/"+ref+"/attachments/"+name, ""); code != 200 || got != string(photo) {
		t.Errorf("attachment: %d, %d bytes", code, len(got))
	}
	s.want(404, eve, "GET", "requests/"+ref+"/attachments/"+name, "")
	for _, bad := range []string{"..%2f..%2fetc%2fpasswd", "att-001-image-..%2fx", "%2e%2e", "CON", strings.Repeat("a", 300), "att-001-image-x%00"} {
		s.want(400, bob, "GET", "requests/"+ref+"/attachments/"+bad, "")
	}
	s.want(404, bob, "GET", "requests/"+ref+"/attachments/att-009-image-x.jpg", "")
	up := s.want(201, "", "POST", "/owner/mess/exchange/requests/"+ref+"/attachments/my%20photo.jpg", string(photo))
	if image, _ := up.Get("image"); image.GetStr("mime") != "image/jpeg" {
		t.Errorf("upload = %s", up.JSON())
	}
	s.want(413, "", "POST", "/owner/mess/exchange/requests/"+ref+"/attachments/x", strings.Repeat("x", thread.MaxUpload+1))
	if up := s.want(201, "", "POST", "/owner/mess/exchange/requests/"+ref+"/attachments/x.svg", "<svg onload=alert(1)>"); up.Members()[0].Key != "file" {
		t.Errorf("an SVG is taken as %s", up.JSON())
	}
	s.want(403, bob, "POST", "requests/"+ref+"/attachments/x", "x")
}

// TestMessageOfRequesterIsNotDropped: a PATCH of a requester with a message but without a new status is refused: a
// requester may only cancel (MESS-55). An unchanged status alone, or a repeated cancel, gets 200.
func TestMessageOfRequesterIsNotDropped(t *testing.T) {
	s := newHTTPLab(t, nil)
	alice, bob := s.register("alice"), s.register("bob")
	path := "requests/" + s.request("alice", "{intent: dig}")
	s.want(200, bob, "PATCH", path, `{"status":"claimed"}`)
	for _, body := range []string{`{"message":"are you there?"}`, `{"status":"claimed","message":"are you there?"}`} {
		if status, text := s.call(alice, "PATCH", path, body); status != 403 || !goldentest.Says(t, body, text) {
			t.Errorf("%s: %d %s, want 403 and what to send", body, status, text)
		}
	}
	s.want(200, alice, "PATCH", path, `{"status":"claimed"}`)
	for range 2 {
		s.want(200, alice, "PATCH", path, `{"status":"cancelled","message":"it rains"}`)
	}
	s.want(409, alice, "PATCH", path, `{"mess":[{"cancel":{"reason":"it snows"}}]}`)
}

// TestMessageBesideStatusInList: the message of a PATCH goes to the last status of its list if that status has none.
func TestMessageBesideStatusInList(t *testing.T) {
	s := newHTTPLab(t, nil)
	bob := s.register("bob")
	for body, want := range map[string]string{
		`{"status":"failed","message":"too wet","mess":[{"status":{"code":"claimed"}},{"status":{"code":"failed"}}]}`: `"code":"failed","message":"too wet","reason":"too wet"`,
		`{"message":"too wet","mess":[{"status":{"code":"failed","message":"mud","reason":"rain"}}]}`:                 `"code":"failed","message":"mud","reason":"rain"`,
	} {
		ref := s.request("alice", "{intent: dig}")
		s.want(200, bob, "PATCH", "requests/"+ref, body)
		if text := string(s.want(200, bob, "GET", "requests/"+ref, "").JSON()); !strings.Contains(text, want) {
			t.Errorf("after %s the thread is %s, which does not contain %s", body, text, want)
		}
	}
}
