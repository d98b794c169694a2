package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// phrases are the turns of phrase that this project's comments and documents once had in the hundreds. A reader has to
// read each of them twice.
var phrases = []struct {
	name    string
	word    string // in every match; looking for it first is cheaper
	pattern *regexp.Regexp
	example string // matches
	instead string
}{
	{"says whether", "whether", regexp.MustCompile(`(?i)\b(?:says?|tells?|said|asks?)\s+whether\b`),
		"valid says whether the card is valid.", "reports whether"},
	{"where there", "here", regexp.MustCompile(`(?i)\bwhere\s+(?:there|it|one)\b`),
		"The reply, where there is one.", "if there is"},
	{"is none", "none", regexp.MustCompile(`\b(?:is|are|was|were)\s+none\b`),
		"It returns nil if there is none.", "has no, or name what is missing"},
	{"anew", "anew", regexp.MustCompile(`\banew\b`),
		"The link connects anew.", "again"},
	{"but for", "for", regexp.MustCompile(`\bbut\s+for\b`),
		"All rows but for the last.", "except"},
	{"is no", " no", regexp.MustCompile(`\b(?:is|are)\s+no\s+(?:[a-km-z]\w*|l[a-np-z]\w*)`),
		"A blank line is no error.", "is not a"},
	{"free Who or What", "Wh", regexp.MustCompile(`(?:^|[.:;]\s+|\n\s*\n)(?:Who|What|Whoever|Whom|Whose|Whatever)\s+[^?.]*?(?:[.]\s|[.]$|$)`),
		"Who asks again gets the same answer.", "name the sender, the owner, the caller"},
	{"is told", "told", regexp.MustCompile(`\b(?:is|are|was|were|be)\s+told\b`),
		"The owner is told once.", "say who tells the owner"},
}

// TestPhrases checks comments and documents for [phrases].
func TestPhrases(t *testing.T) {
	for _, p := range phrases {
		if !p.pattern.MatchString(p.example) || !strings.Contains(p.pattern.FindString(p.example), p.word) {
			t.Errorf("the pattern of %q and its word do not match its example %q", p.name, p.example)
		}
	}
	texts := 0
	check := func(name string, line int, text string) {
		texts++
		for _, p := range phrases {
			if !strings.Contains(text, p.word) {
				continue
			}
			for _, at := range p.pattern.FindAllStringIndex(text, -1) {
				t.Errorf("%s:%d: %q: write %q instead", name, line+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], p.instead)
			}
		}
	}
	for name, text := range documents(t) {
		check(name, 1, text)
	}
	eachGoFile(t, func(name string, fset *token.FileSet, f *ast.File) {
		for _, c := range f.Comments {
			check(name, fset.Position(c.Pos()).Line, c.Text())
		}
	})
	if texts < 5000 {
		t.Errorf("%d texts were read: this test sees too little", texts)
	}
}

// TestComments checks that the comment of a declaration starts with its name, exported or not, in tests too.
func TestComments(t *testing.T) {
	comments := 0
	eachGoFile(t, func(name string, fset *token.FileSet, f *ast.File) {
		for _, d := range documented(f) {
			comments++
			first := strings.Fields(d.doc.Text())[0]
			if strings.TrimRight(first, ",:.;") != d.name {
				t.Errorf("%s: the comment of %s starts with %q", fset.Position(d.doc.Pos()), d.name, first)
			}
		}
	})
	if comments < 5000 {
		t.Errorf("%d comments were read: this test sees too little", comments)
	}
}

// ruleNumber matches the number of a rule of a protocol note.
var ruleNumber = regexp.MustCompile(`\b(?:AM|MEW|MS|MESS|AR|A2A|OC|MCP|DISC)-\d`)

// TestNoRulesInTexts checks that no text of the program cites the number of a rule: the people who read help, errors
// and logs do not have the notes.
func TestNoRulesInTexts(t *testing.T) {
	texts := 0
	eachGoFile(t, func(name string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
				texts++
				if ruleNumber.MatchString(text.Value) {
					t.Errorf("%s: the text cites a rule: %s", fset.Position(text.Pos()), text.Value)
				}
			}
			return true
		})
	})
	if texts < 10_000 {
		t.Errorf("%d texts were read: this test sees too little", texts)
	}
}

// maxParticiples is the part of functions that may have a participle for a name: what another package's interface
// dictates, and words such as Feed that only look like one.
const maxParticiples = 0.02

// TestFunctionNames checks that functions are named for what they do: a verb, not its participle.
func TestFunctionNames(t *testing.T) {
	functions, participles := 0, []string{}
	eachGoFile(t, func(name string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		for _, decl := range f.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok {
				functions++
				if strings.HasSuffix(d.Name.Name, "ed") {
					participles = append(participles, d.Name.Name)
				}
			}
		}
	})
	t.Logf("%d of %d function names end in -ed", len(participles), functions)
	if functions < 4000 || float64(len(participles)) > maxParticiples*float64(functions) {
		t.Errorf("%d of %d function names end in -ed, at most %.0f %% may: %q", len(participles), functions, 100*maxParticiples, participles)
	}
}

// declaration is a name with its doc comment.
type declaration struct {
	name string
	doc  *ast.CommentGroup
}

// documented returns the top-level declarations of a file that have a doc comment with a text. The comment of a group
// in parentheses belongs to no name.
func documented(f *ast.File) []declaration {
	var out []declaration
	add := func(name string, doc *ast.CommentGroup) {
		if doc != nil && name != "_" && strings.TrimSpace(doc.Text()) != "" {
			out = append(out, declaration{name, doc})
		}
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			add(d.Name.Name, d.Doc)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					add(s.Name.Name, docOf(d, s.Doc))
				case *ast.ValueSpec:
					add(s.Names[0].Name, docOf(d, s.Doc))
				}
			}
		}
	}
	return out
}

// docOf returns the comment of one spec of a declaration.
func docOf(d *ast.GenDecl, own *ast.CommentGroup) *ast.CommentGroup {
	if d.Lparen.IsValid() {
		return own
	}
	return d.Doc
}

// goFile is a parsed Go file of the module.
type goFile struct {
	name string
	fset *token.FileSet
	file *ast.File
}

// goFiles holds the Go files of the module once [eachGoFile] has parsed them.
var goFiles []goFile

// eachGoFile calls f with each Go file of the module. The files are parsed at the first call.
func eachGoFile(t *testing.T, f func(name string, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	if goFiles == nil {
		eachFile(t, func(name string, data []byte) {
			if !strings.HasSuffix(name, ".go") {
				return
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, data, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			goFiles = append(goFiles, goFile{name, fset, file})
		})
	}
	for _, g := range goFiles {
		f(g.name, g.fset, g.file)
	}
}
