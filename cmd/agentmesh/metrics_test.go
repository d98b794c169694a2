package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
)

type metricRow struct{ name, kind, labels, help string }

func (r metricRow) String() string {
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", r.name, r.kind, r.labels, cell(r.help))
}

const (
	metricsBegin = "<!-- metrics: written by go test ./cmd/agentmesh -run Docs -update -->\n"
	metricsEnd   = "<!-- /metrics -->\n"
)

// TestDocsMetrics compares the table in docs/operations.md with the metrics that a process serves to its owner, except
// those of the Go runtime and the process (go_, process_).
func TestDocsMetrics(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	server, err := startServe(dir, []string{"--set=owner_api.listen=127.0.0.1:0"}, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Signal(os.Interrupt); server.Wait() })
	resp, err := http.Get(server.info.URL + "/v1/agents") // the metrics of requests appear with the first request
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if status, _ := scrapeOwner(t, server.info, ""); status != http.StatusUnauthorized {
		t.Errorf("a scrape without the token = %d, want 401", status)
	}
	token, err := os.ReadFile(filepath.Join(dir, "owner.token"))
	if err != nil {
		t.Fatal(err)
	}
	scrapeOwner(t, server.info, string(token)) // requests to the owner API are counted, too
	status, body := scrapeOwner(t, server.info, string(token))
	if status != http.StatusOK {
		t.Fatalf("a scrape with the token = %d: %s", status, body)
	}
	for name, secret := range secretsIn(t, dir, server.info) { // THREATS 29
		if strings.Contains(body, secret) {
			t.Errorf("%s is in the metrics", name)
		}
	}
	if strings.Contains(body, "am_") || strings.Contains(body, dir) {
		t.Error("an agent id or a path is in the metrics")
	}

	var table strings.Builder
	table.WriteString("| name | type | labels | meaning |\n|---|---|---|---|\n")
	rows := slices.DeleteFunc(metricRows(t, body), func(r metricRow) bool { return !strings.HasPrefix(r.name, "agentmesh_") })
	for _, r := range rows {
		table.WriteString(r.String())
	}
	if len(rows) < 25 {
		t.Fatalf("the scrape has %d metrics", len(rows))
	}
	path := filepath.Join("..", "..", "docs", "operations.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), metricsBegin)
	old, after, ok2 := strings.Cut(rest, metricsEnd)
	if !ok || !ok2 {
		t.Fatal("docs/operations.md has no table of metrics")
	}
	want := "\n" + table.String() + "\n"
	switch {
	case old == want:
	case !*update:
		t.Errorf("the metrics in docs/operations.md differ from those of the program; run go test ./cmd/agentmesh -run Docs -update\n%s", table.String())
	default:
		if err := os.WriteFile(path, []byte(before+metricsBegin+want+metricsEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// serveOwner starts serve with a listener for its owner, and returns the process and the owner's token.
func serveOwner(t *testing.T, env []string, flags ...string) (server *serveProcess, token string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	server, err := startServe(dir, append(flags, "--set=owner_api.listen=127.0.0.1:0"), env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Signal(os.Interrupt); server.Wait() })
	data, err := os.ReadFile(filepath.Join(dir, "owner.token"))
	if err != nil {
		t.Fatal(err)
	}
	return server, string(data)
}

func scrapeOwner(t *testing.T, w daemon.ServeInfo, token string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, strings.TrimSuffix(strings.TrimSuffix(w.OwnerAPI, "/"), "/owner")+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// metricRows parses a scrape and returns the names, types and label keys of its metrics, in order.
func metricRows(t *testing.T, body string) []metricRow {
	t.Helper()
	var rows []metricRow
	labels := map[string]bool{}
	for scan := bufio.NewScanner(strings.NewReader(body)); scan.Scan(); {
		line := scan.Text()
		if text, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(text, " ")
			rows = append(rows, metricRow{name: name, help: help})
			clear(labels)
			continue
		}
		if strings.HasPrefix(line, "go_") || strings.HasPrefix(line, "process_") {
			continue
		}
		r := &rows[len(rows)-1]
		if text, ok := strings.CutPrefix(line, "# TYPE "); ok {
			_, r.kind, _ = strings.Cut(text, " ")
			continue
		}
		_, inside, ok := strings.Cut(line, "{")
		if !ok {
			continue
		}
		inside = inside[:strings.LastIndexByte(inside, '}')]
		for pair := range strings.SplitSeq(inside, `",`) {
			key, _, _ := strings.Cut(pair, "=")
			if key = strings.TrimSpace(key); key != "le" && key != "quantile" && !labels[key] {
				labels[key] = true
				r.labels = strings.TrimPrefix(r.labels+", `"+key+"`", ", ")
			}
		}
	}
	return rows
}

// TestDocsLimiters: docs/operations.md names every limiter in its text, because the table has no label values.
func TestDocsLimiters(t *testing.T) {
	server, token := serveOwner(t, os.Environ())
	_, body := scrapeOwner(t, server.info, token)
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, part := range strings.Split(body, `agentmesh_limiter_refusals_total{limiter="`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if found++; !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/operations.md does not name the limiter %s", name)
		}
	}
	if found < 11 {
		t.Errorf("%d limiters are in the scrape", found)
	}
}
