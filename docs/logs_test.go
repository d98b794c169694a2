package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// bareVerbs begin a log message that says what the program wanted, and not what happened.
var bareVerbs = strings.Fields(`accept acquire add apply ask call carry check clear close connect count create decode delete drop
encode end fetch find get give handle keep list load look make move open parse publish read record recover register reject release
remove renew resolve run save send serve set start stop store tell trim update verify wait warn withdraw work write`)

// TestLogGrammar: a message of a warning or an error says what happened, and is no bare verb such as "load outbox".
func TestLogGrammar(t *testing.T) {
	checked := 0
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, p.Dir+"/"+name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				message, ok := loggedMessage(n)
				if !ok {
					return true
				}
				checked++
				first, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(message, "a2a: "), "moltspeak: "), " ")
				if slices.Contains(bareVerbs, first) {
					t.Errorf("%s: %q begins with a bare verb", fset.Position(n.Pos()), message)
				}
				return true
			})
		}
	}
	if checked < 100 {
		t.Errorf("only %d messages were found", checked)
	}
}

// loggedMessage returns the message of a call that logs a warning or an error.
func loggedMessage(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Warn", "WarnContext", "Error", "ErrorContext"}, method.Sel.Name) {
		return "", false
	}
	for _, arg := range call.Args[:min(2, len(call.Args))] {
		if text, ok := arg.(*ast.BasicLit); ok && text.Kind == token.STRING {
			message, err := strconv.Unquote(text.Value)
			return message, err == nil
		}
	}
	return "", false
}
