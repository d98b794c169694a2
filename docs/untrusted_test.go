//go:build slow

package docs

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	loader "golang.org/x/tools/go/packages"
)

// outlets are the packages whose texts a model reads. There, the ids, codes and intents of a message count as words of a
// peer, like untrusted.Text everywhere.
var outlets = []string{"node/hook", "node/owner/mcp"}

var peersWords = []string{"node/wire.AgentID", "node/wire.Code", "node/wire.ConversationID", "node/wire.Intent", "node/wire.MessageID"}

// shown are the functions that may take a peer's word of a type as a string, with the reason.
var shown = map[string]string{
	"node/hook.Call.document AgentID":             "the input of a hook, which says what is untrusted",
	"node/hook.Call.document Text":                "the input of a hook, which says what is untrusted",
	"node/hook.Call.event MessageID":              "the key by which a repeat is recognized",
	"node/hook.Call.history Intent":               "the input of a hook, which says what is untrusted",
	"node/hook.Call.history MessageID":            "compares ids",
	"node/hook.Exec.Handle MessageID":             "names the run of the program",
	"node/hook.NewTrialCall ConversationID":       "the owner's trial of a hook; the id is ours",
	"node/hook.Try Code":                          "the owner's trial of a hook; the code is the hook's",
	"node/hook.earlierTurns MessageID":            "compares ids",
	"node/hook.newFence AgentID":                  "the input of a hash",
	"node/hook.sanitize Text":                     "cleans what stands between fences",
	"node/hook.writeNames AgentID":                "compares a word with what stands for it in the header",
	"node/hook.writeNames Intent":                 "compares a word with what stands for it in the header",
	"node/hook.writeNames Text":                   "compares a word with what stands for it in the header",
	"node/owner/mcp.Channel.isListed AgentID":     "a key of the owner's rules",
	"node/owner/mcp.Channel.push AgentID":         "the author of an id, for its handle",
	"node/owner/mcp.authorOf AgentID":             "a party, whose name is a handle",
	"node/owner/mcp.codes Code":                   "our table",
	"node/owner/mcp.handles.name Text":            "keeps an id behind its handle",
	"node/owner/mcp.intentPrefix Intent":          "the beginning of a marked text",
	"node/owner/mcp.tools.keyOf AgentID":          "a key of the owner's rules",
	"node/owner/mcp.tools.lastProposal MessageID": "an argument of the owner API",
	"node/owner/mcp.tools.newInboxItem AgentID":   "the author of an id, for its handle",
	"node/owner/mcp.tools.read AgentID":           "an argument of the owner API",
	"node/owner/mcp.tools.read ConversationID":    "an argument of the owner API",
	"node/owner/mcp.tools.runSend ConversationID": "an argument of the owner API",
	"node/owner/mcp.tools.runSend MessageID":      "the id of our message",
	"node/owner/mcp.tools.viewCard AgentID":       "a party, whose name is a handle",
	"node/owner/mcp.tools.whoami AgentID":         "our own id",
}

// TestPeersWordsStayMarked (THREATS 43): a word of a peer does not become part of a text of ours: no conversion to
// another type, no concatenation, no argument of an interface type, as those of fmt and slog are, except in the
// functions of shown.
func TestPeersWordsStayMarked(t *testing.T) {
	patterns := slices.Clone(outlets)
	for _, p := range packages(t) {
		if pkg, ok := inner(p.ImportPath); ok && slices.Contains(p.Imports, module+"/node/untrusted") && !slices.Contains(patterns, pkg) {
			patterns = append(patterns, pkg)
		}
	}
	for i, pkg := range patterns {
		patterns[i] = module + "/" + pkg
	}
	list, err := loader.Load(&loader.Config{Mode: loader.LoadSyntax, Dir: "..", Env: append(os.Environ(), "CGO_ENABLED=0")}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	unused := maps.Clone(shown)
	for _, p := range list {
		for _, err := range p.Errors {
			t.Fatal(err)
		}
		pkg, _ := inner(p.PkgPath)
		w := words{info: p.TypesInfo, isOutlet: slices.Contains(outlets, pkg)}
		for _, file := range p.Syntax {
			for _, decl := range file.Decls {
				ast.Inspect(decl, func(n ast.Node) bool {
					why, word := w.misuse(n)
					name := pkg + "." + nameOf(decl) + " " + word
					switch _, listed := shown[name]; {
					case why == "":
					case listed:
						delete(unused, name)
					default:
						t.Errorf("%s: %s: %s", p.Fset.Position(n.Pos()), name, why)
					}
					return true
				})
			}
		}
	}
	for name := range unused {
		t.Errorf("%s is not taken as a string: take it out of the list", name)
	}
}

// nameOf returns the name of a declared function, with its receiver.
func nameOf(decl ast.Decl) string {
	f, ok := decl.(*ast.FuncDecl)
	if !ok {
		return ""
	}
	if f.Recv == nil {
		return f.Name.Name
	}
	return strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*") + "." + f.Name.Name
}

// words finds where the words of a peer lose their type.
type words struct {
	info     *types.Info
	isOutlet bool
}

// typeOf returns the type of an expression that is a word of a peer, or "". A constant of ours with such a type is none.
func (w words) typeOf(e ast.Expr) string {
	if tv, ok := w.info.Types[e]; !ok || tv.Value != nil {
		return ""
	}
	named, ok := types.Unalias(w.info.TypeOf(e)).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return ""
	}
	name, _ := inner(named.Obj().Pkg().Path())
	if name += "." + named.Obj().Name(); name == "node/untrusted.Text" || w.isOutlet && slices.Contains(peersWords, name) {
		return named.Obj().Name()
	}
	return ""
}

// misuse returns how a node makes a peer's word an ordinary text, and the type of the word, or "".
func (w words) misuse(n ast.Node) (why, word string) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if word = w.typeOf(n.X) + w.typeOf(n.Y); n.Op == token.ADD && word != "" {
			return "concatenates a word of a peer", word
		}
	case *ast.CallExpr:
		return w.misuseInCall(n)
	case *ast.CompositeLit:
		m, isMap := w.info.TypeOf(n).Underlying().(*types.Map)
		for _, e := range n.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok && isMap && types.IsInterface(m.Elem()) && w.typeOf(kv.Value) != "" {
				return "puts a word of a peer into a map of any", w.typeOf(kv.Value)
			}
		}
	}
	return "", ""
}

func (w words) misuseInCall(call *ast.CallExpr) (why, word string) {
	if w.info.Types[call.Fun].IsType() {
		if word = w.typeOf(call.Args[0]); word != "" && w.typeOf(call) == "" {
			return "converts a word of a peer to " + w.info.TypeOf(call).String(), word
		}
		return "", ""
	}
	sig, ok := w.info.TypeOf(call.Fun).(*types.Signature)
	if !ok {
		return "", ""
	}
	for i, arg := range call.Args {
		if word = w.typeOf(arg); word == "" {
			continue
		}
		last := sig.Params().Len() - 1
		param := sig.Params().At(min(i, last)).Type()
		if s, ok := param.(*types.Slice); ok && sig.Variadic() && i >= last {
			param = s.Elem()
		}
		if _, isParam := param.(*types.TypeParam); !isParam && types.IsInterface(param) {
			return "passes a word of a peer as any", word
		}
	}
	return "", ""
}
