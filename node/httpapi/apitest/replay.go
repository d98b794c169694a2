package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// Exchange is a recorded request with its response. In the response, "*" stands for any string.
type Exchange struct {
	Name         string
	Method, Path string
	Header       http.Header
	Body         []byte // exactly as it was sent
	Status       int
	Answer       []byte
}

// Read reads the exchanges of a txtar archive, which has two entries for each exchange, the second called "response". A
// request is a line with method and path, headers and, after an empty line, the body, which is a single line.
func Read(t testing.TB, file string) []Exchange {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := txtar.Parse(data).Files
	var list []Exchange
	for i := 0; i+1 < len(files); i += 2 {
		x, err := parseExchange(files[i], files[i+1])
		if err != nil {
			t.Fatalf("%s: %s: %v", file, files[i].Name, err)
		}
		list = append(list, x)
	}
	if len(list) == 0 {
		t.Fatalf("%s holds no exchange", file)
	}
	return list
}

func parseExchange(request, response txtar.File) (Exchange, error) {
	x := Exchange{Name: request.Name, Header: http.Header{}}
	head, body, _ := strings.Cut(string(request.Data), "\n\n")
	x.Body = []byte(strings.TrimSuffix(body, "\n"))
	lines := strings.Split(strings.TrimSuffix(head, "\n"), "\n")
	var ok bool
	if x.Method, x.Path, ok = strings.Cut(lines[0], " "); !ok || response.Name != "response" {
		return Exchange{}, fmt.Errorf("no request line in %q, or no response after it", lines[0])
	}
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ": ")
		if !ok {
			return Exchange{}, fmt.Errorf("header %q", line)
		}
		x.Header.Add(name, value)
	}
	status, answer, _ := strings.Cut(string(response.Data), "\n")
	x.Answer = []byte(strings.TrimSpace(answer))
	var err error
	x.Status, err = strconv.Atoi(status)
	return x, err
}

// Replay sends the request to h and compares the response: its status must be equal, and its body must contain
// everything that was recorded. It may contain more.
func (x Exchange) Replay(t testing.TB, h http.Handler) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), x.Method, x.Path, bytes.NewReader(x.Body))
	r.Host = "127.0.0.1:3141"
	r.Header = x.Header.Clone()
	rec := httptest.NewRecorder()
	Check(t, h).ServeHTTP(rec, r)
	if rec.Code != x.Status {
		t.Errorf("%s: %s %s = %d %s, want %d", x.Name, x.Method, x.Path, rec.Code, rec.Body, x.Status)
		return
	}
	if len(x.Answer) == 0 {
		if rec.Body.Len() > 0 {
			t.Errorf("%s: body %s, want none", x.Name, rec.Body)
		}
		return
	}
	var got, want any
	if err := json.Unmarshal(x.Answer, &want); err != nil {
		t.Fatalf("%s: recorded answer: %v", x.Name, err)
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || !covers(got, want) {
		t.Errorf("%s: body %s, want %s", x.Name, rec.Body, x.Answer)
	}
}

// covers reports whether got has everything that want has.
func covers(got, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for key, v := range w {
			ok = ok && covers(g[key], v)
		}
		return ok
	case []any:
		g, ok := got.([]any)
		ok = ok && len(g) == len(w)
		for i := range w {
			ok = ok && covers(g[i], w[i])
		}
		return ok
	case string:
		g, ok := got.(string)
		return ok && (w == "*" || w == g)
	}
	return got == want
}
