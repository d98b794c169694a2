package mess

import (
	"bytes"
	"context"
	"encoding/base64"
	"image"
	"image/jpeg"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	template "github.com/DataDog/datadog-agent/pkg/template/html"

	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// TestPage: the owner claims and completes on the page, with a photo that is served from our own store and nothing
// else.
func TestPage(t *testing.T) {
	l := newLab(t)
	b, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store), Serve: true})
	if err != nil {
		t.Fatal(err)
	}
	owner := httpapi.NewOwner(httpapi.OwnerConfig{})
	b.MountPage(owner.Pages())
	owner.Pages().NamePeers(func(_ context.Context, id string) string { return "Ann of " + id })
	call := func(method, path, kind string, body []byte) (*http.Response, string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, bytes.NewReader(body))
		if kind != "" {
			r.Header.Set("Content-Type", kind)
		}
		w := httptest.NewRecorder()
		owner.Handler().ServeHTTP(w, r)
		return w.Result(), w.Body.String()
	}
	const form = "application/x-www-form-urlencoded"
	ref := l.request("agent", `{intent: "<script>alert(1)</script> look", context: ["\u202etext", {image: "https://evil.example/x.png"}]}`)
	if resp, text := call("GET", httpapi.PagePath+"/mess?state=received", "", nil); resp.StatusCode != 200 || !strings.Contains(text, ref) || !strings.Contains(text, "Ann of agent") || strings.Contains(text, "<script>alert") {
		t.Errorf("list: %d\n%s", resp.StatusCode, text)
	}
	page := httpapi.PagePath + "/mess/" + ref
	if _, text := call("GET", page, "", nil); !strings.Contains(text, `value="claim"`) || strings.Count(text, "Ann of agent") != 2 || strings.Contains(text, `src="https://evil`) || strings.Contains(text, "\u202e") {
		t.Errorf("thread:\n%s", text)
	}
	if resp, _ := call("POST", page, form, []byte(url.Values{"do": {"claim"}}.Encode())); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("claim: %d", resp.StatusCode)
	}
	l.want(ref, thread.Claimed)
	var photo bytes.Buffer
	if err := jpeg.Encode(&photo, image.NewGray(image.Rect(0, 0, 8, 8)), nil); err != nil {
		t.Fatal(err)
	}
	send := func(data []byte) int {
		t.Helper()
		var body bytes.Buffer
		m := multipart.NewWriter(&body)
		for key, value := range map[string]string{"do": "complete", "text": "all done"} {
			if err := m.WriteField(key, value); err != nil {
				t.Fatal(err)
			}
		}
		file, err := m.CreateFormFile("photo", "../../Küche <1>.jpg")
		if err == nil {
			_, err = file.Write(data)
		}
		if err != nil || m.Close() != nil {
			t.Fatal(err)
		}
		resp, _ := call("POST", page, m.FormDataContentType(), body.Bytes())
		return resp.StatusCode
	}
	if code := send(make([]byte, thread.MaxUpload+formRoom)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a photo of more than 10 MiB: %d", code)
	}
	if code := send(photo.Bytes()); code != http.StatusSeeOther {
		t.Fatalf("complete: %d", code)
	}
	l.want(ref, thread.Completed)
	_, text := call("GET", page, "", nil)
	_, rest, ok := strings.Cut(text, `<img class="photo" src="`)
	src, _, _ := strings.Cut(rest, `"`)
	if !ok || !strings.Contains(text, "all done") {
		t.Fatalf("thread:\n%s", text)
	}
	if resp, got := call("GET", src, "", nil); resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "image/jpeg" || got != photo.String() {
		t.Errorf("photo: %d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	entry, err := l.Upload(t.Context(), exchange.Owner("test"), ref, "x.svg", []byte("<svg onload=alert(1)>"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, _ := call("GET", page+"/"+entry.At(0).GetStr("file"), "", nil); resp.StatusCode != 404 {
		t.Errorf("an SVG is shown: %d", resp.StatusCode)
	}
	if resp, _ := call("GET", httpapi.PagePath+"/mess/nothing", "", nil); resp.StatusCode != 404 {
		t.Errorf("no thread: %d", resp.StatusCode)
	}
	if resp, _ := call("POST", page, form, []byte("do=nonsense")); resp.StatusCode != 400 {
		t.Errorf("nonsense: %d", resp.StatusCode)
	}
}

// TestPageShowsEverything: the page leaves nothing of a message out, and it shows an inline picture from its bytes
// alone.
func TestPageShowsEverything(t *testing.T) {
	var png bytes.Buffer
	if err := jpeg.Encode(&png, image.NewGray(image.Rect(0, 0, 4, 4)), nil); err != nil {
		t.Fatal(err)
	}
	picture := base64.StdEncoding.EncodeToString(png.Bytes())
	svg := base64.StdEncoding.EncodeToString([]byte("<svg onload=alert(1)>"))
	b := mustParse(t, `- request:
    intent: look
    requires: [ladder]
    compensation: {shells: 7}
    confirm_before: true
    constraints: {location: the cellar, timing: {expires: 2h}}
    context:
    - {image: {uri: "data:text/html;base64,`+picture+`", name: a.html}}
    - {image: "data:image/png;base64,`+svg+`"}
    - {file: {uri: "data:application/pdf;base64,`+svg+`", name: plan.pdf}}
    - {location: {name: shed}}
- status: {code: failed, re: last, reason: {type: no_ladder, detail: gone}, recoverable: true}
- status: {code: needs_confirmation, re: last, action: climb, reversible: false}
- suggestion: {id: s, type: alternative, re: [last], proposed: {intent: jump}, reason: faster}
- followup: a word
- review: {content: five stars}
- answer: {id: which-door, value: the left one}
`)
	row := viewMessage("2026-02-01-001", thread.Message{Mess: b.Tree()})
	all := strings.Join(row.Texts, "\n")
	for _, want := range []string{"ladder", "shells: 7", "confirm_before: true", "the cellar", "expires", "shed", "no_ladder", "recoverable: true",
		"climb", "reversible: false", "jump", "faster", "a word", "five stars", "which-door"} {
		if !strings.Contains(all, want) {
			t.Errorf("the page does not say %q:\n%s", want, all)
		}
	}
	if len(row.Inline) != 1 || row.Inline[0] != template.URL("data:image/jpeg;base64,"+picture) {
		t.Errorf("pictures = %.200v", row.Inline)
	}
	if len(row.Images) != 0 || len(row.Files) != 2 || row.Files[1] != "plan.pdf, application/pdf, 21 bytes" {
		t.Errorf("images %v, files %v", row.Images, row.Files)
	}
	if strings.Contains(all, svg) {
		t.Errorf("data is shown as text:\n%s", all)
	}
}
