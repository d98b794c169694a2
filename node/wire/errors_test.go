package wire

import (
	"errors"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

// TestTable checks AM-28: the statuses of each code, and which requests may be repeated.
func TestTable(t *testing.T) {
	allowed := map[Code]map[int]bool{ // status → retry
		InvalidMessage:     {400: false, 404: false, 405: false, 409: false, 413: false, 415: false},
		InvalidSignature:   {401: false},
		Unauthorized:       {403: false, 401: false},
		OwnerRejected:      {403: false},
		IntentNotSupported: {422: false},
		ConversationClosed: {409: false},
		RateLimited:        {429: true},
		AgentUnavailable:   {503: true, 404: false, 500: false}, // 500 is a panic or a fault of ours
	}
	rows, codes := map[string]bool{}, map[Code]bool{}
	for _, e := range Table() {
		if e.Row() == "" || rows[e.Row()] {
			t.Errorf("row %q is empty or occurs twice", e.Row())
		}
		rows[e.Row()], codes[e.Code] = true, true
		retry, ok := allowed[e.Code][e.Status]
		if !ok || retry != e.Retry {
			t.Errorf("%s: %s %d retry %v is not in AM-28", e.Row(), e.Code, e.Status, e.Retry)
		}
		if e.Row() == ErrHoldsFull.Row() && e.RetryAfter != OwnerDecisionTime { // people do not decide within seconds
			t.Errorf("%s: Retry-After %v, want %v", e.Row(), e.RetryAfter, OwnerDecisionTime)
		}
		if (e.Status == 429 || e.Status == 503) != (e.RetryAfter > 0) {
			t.Errorf("%s: Retry-After %v with status %d", e.Row(), e.RetryAfter, e.Status)
		}
		if http.StatusText(e.Status) == "" || e.Message == "" || strings.HasSuffix(e.Message, ".") {
			t.Errorf("%s: status %d, message %q", e.Row(), e.Status, e.Message)
		}
	}
	if len(codes) != 8 {
		t.Errorf("the table has %d of the eight codes of §8", len(codes))
	}
}

// TestTableIsWhole reads the source: a row that is declared but not in Table would be missing in all documents and
// tests.
func TestTableIsWhole(t *testing.T) {
	file, err := goparser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Err") {
			declared++
		}
		return true
	})
	if declared != len(Table()) {
		t.Errorf("%d rows are declared, Table returns %d", declared, len(Table()))
	}
}

// TestErrorRoundTrip checks that every row survives AppendJSON and ParseError.
func TestErrorRoundTrip(t *testing.T) {
	for _, e := range Table() {
		body := e.At("payload.event must be an object").Because(errors.New("SECRET cause")).AppendJSON(nil)
		if strings.Contains(string(body), "SECRET") {
			t.Errorf("%s: the cause is sent: %s", e.Row(), body)
		}
		got, ok := ParseError(e.Status, mustParse(t, string(body)))
		if !ok || got.Code != e.Code || got.Status != e.Status || got.Retry != e.Retry || !strings.HasPrefix(got.Message, e.Message+": payload.event") {
			t.Errorf("%s: came back as %+v, %v", e.Row(), got, ok)
		}
	}
}

func TestParseErrorRefuses(t *testing.T) {
	for _, body := range []string{`{}`, `[]`, `"x"`, `null`, `{"error":"x"}`, `{"error":{}}`, `{"error":{"code":5}}`, `{"error":{"code":""}}`,
		`{"error":{"code":"\u001b[31m"}}`, `{"error":{"code":"lower case"}}`, `{"error":{"code":"` + strings.Repeat("A", 65) + `"}}`} {
		if e, ok := ParseError(400, mustParse(t, body)); ok {
			t.Errorf("ParseError(%s) = %+v", body, e)
		}
	}
	e, ok := ParseError(418, mustParse(t, `{"error":{"code":"NEW_CODE","retry":"yes","message":7}}`))
	if !ok || e.Code != "NEW_CODE" || e.Retry || e.Message != "" || e.Row() != "" {
		t.Errorf("an unknown code with odd fields came back as %+v, %v", e, ok)
	}
}

func TestErrorCopies(t *testing.T) {
	before := *ErrPayload
	field := &FieldError{"payload.reason", "must be a string"}
	e := ErrPayload.WithField(field).After(90 * time.Second)
	if *ErrPayload != before {
		t.Fatal("a row of the table was changed")
	}
	if e.Message != before.Message+": payload.reason must be a string" || e.RetryAfter != 90*time.Second {
		t.Errorf("WithField = %+v", e)
	}
	wrapped := fmt.Errorf("receive: %w", e)
	if !errors.Is(wrapped, ErrPayload) || errors.Is(wrapped, ErrSchema) || errors.Is(wrapped, ErrSignature) {
		t.Error("errors.Is does not go by the row")
	}
	if got, ok := errors.AsType[*FieldError](wrapped); !ok || got != field {
		t.Error("the cause is not reached")
	}
	if got := ErrUnavailable.Because(io.ErrUnexpectedEOF); !errors.Is(got, io.ErrUnexpectedEOF) || !goldentest.Refuses(t, "unavailable", got) {
		t.Errorf("Because = %v", got)
	}
	goldentest.Refuses(t, "payload", ErrPayload)
}
