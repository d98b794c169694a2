package httpapi

import (
	"encoding/json"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	template "github.com/DataDog/datadog-agent/pkg/template/html"
)

// wrapperTag matches all markup that may surround strangers' text.
var wrapperTag = regexp.MustCompile(`</?(?:div|span|details|summary|bdi|code)(?: (?:class|dir|tabindex|role|aria-label)="[a-zA-Z0-9 -]*")*>`)

// checkText checks the HTML that was made of s.
func checkText(t *testing.T, name string, s string, got template.HTML) {
	t.Helper()
	left := wrapperTag.ReplaceAllString(string(got), "")
	if strings.ContainsAny(left, `<>"'`) {
		t.Errorf("%s(%.60q): markup of its own: %.200q", name, s, left)
	}
	for _, r := range html.UnescapeString(left) {
		if r != '\n' && r != '\t' && r != ' ' && !unicode.IsPrint(r) {
			t.Errorf("%s(%.60q) holds %U", name, s, r)
			break
		}
	}
	if !utf8.ValidString(left) {
		t.Errorf("%s(%.60q) is not UTF-8", name, s)
	}
}

func checkAll(t *testing.T, s string) {
	t.Helper()
	checkText(t, "text", s, pageText(s))
	checkText(t, "line", s, pageLine(s))
	checkText(t, "id", s, pageID(s))
	checkText(t, "hash", s, pageHash(s))
	raw, err := json.Marshal(map[string]string{"body": s})
	if err != nil {
		t.Fatal(err)
	}
	checkText(t, "json", s, pageJSON(raw))
}

func TestPageTextOfStrangers(t *testing.T) { // THREATS 28, 30
	for _, s := range []string{
		"", "plain", "<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "'\"`&<>", "a\u202egnp.exe", "\u2066\u2067\u2068x\u2069",
		"\x00\x1b[31m\x7f\u0085", "\xff\xfe", "\ufffd", "line\nbreak\ttab\r\n", "\u200b\ufeff\u00ad", "zo\u0308e", strings.Repeat("e\u0301", 10),
		"a" + strings.Repeat("\u0301", 10_000), strings.Repeat("x", 256<<10), strings.Repeat("y\n", 5_000), "🙂👩‍👩‍👧", "</div></details><h1>Approved by the owner</h1>",
	} {
		checkAll(t, s)
	}
}

func TestPageTextNaughtyStrings(t *testing.T) {
	dir := os.Getenv("AGENTMESH_CORPORA")
	if dir == "" {
		t.Skip("AGENTMESH_CORPORA is not set")
	}
	data, err := os.ReadFile(filepath.Join(dir, "blns", "blns.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	if err := json.Unmarshal(data, &list); err != nil || len(list) < 100 {
		t.Fatalf("%d strings: %v", len(list), err)
	}
	for _, s := range list {
		checkAll(t, s)
	}
}

func FuzzPageText(f *testing.F) {
	f.Add("<b>\u202e\u0301\u0301\u0301\u0301\u0301")
	f.Fuzz(func(t *testing.T, s string) { checkAll(t, s) })
}

func TestPageTextIsWhole(t *testing.T) {
	long := strings.Repeat("word ", 1000)
	got := string(pageText(long))
	if !strings.Contains(got, "<summary>Show all 5,000 characters</summary>") || strings.Count(got, "word ") < 1000 {
		t.Errorf("a long text is not whole: %.300s", got)
	}
	if got := string(pageText("short")); strings.Contains(got, "<details") {
		t.Errorf("a short text has an expander: %s", got)
	}
	if got := string(pageText("a\u202eb")); !strings.Contains(got, `<span class="ctl">U+202E</span>`) {
		t.Errorf("an override is not shown: %s", got)
	}
	if got := string(pageText("two\r\nlines")); !strings.Contains(got, ">two\nlines<") {
		t.Errorf("a line break of a browser: %s", got)
	}
	if got := string(pageText("a\rb")); !strings.Contains(got, `<span class="ctl">U+000D</span>`) {
		t.Errorf("a carriage return alone is not shown: %s", got)
	}
	marks := string(pageText("a" + strings.Repeat("\u0301", 10_000)))
	if n := strings.Count(marks, "\u0301"); n != 2*maxMarks || !strings.Contains(marks, "+9996 marks") {
		t.Errorf("%d marks are drawn: %s", n, marks)
	}
	if got := string(pageJSON(json.RawMessage(`{"a":[1,"<"]}`))); !strings.Contains(got, "\n  &#34;a&#34;: [") {
		t.Errorf("a document is not laid out: %s", got)
	}
	if got := string(pageLine("one\ntwo " + strings.Repeat("x", 500))); !strings.Contains(got, "one two") || !strings.Contains(got, "…") {
		t.Errorf("a line: %s", got)
	}
}

func TestPageTimes(t *testing.T) {
	now := time.Now()
	for want, at := range map[string]time.Time{
		"never": {}, "over": now.Add(-time.Hour), "in a moment": now.Add(time.Minute), "in 30 minutes": now.Add(30*time.Minute + time.Second),
		"in 5 hours": now.Add(5*time.Hour + time.Minute), "in 7 days": now.Add(7*24*time.Hour + time.Hour),
	} {
		if got := pageTimeLeft(at); got != want {
			t.Errorf("left = %q, want %q", got, want)
		}
	}
	if got := string(pageTime(time.Date(2020, 2, 1, 10, 0, 0, 0, time.UTC))); !strings.Contains(got, `datetime="2020-02-01T10:00:00Z"`) || !strings.Contains(got, "2020") {
		t.Errorf("time = %s", got)
	}
}
