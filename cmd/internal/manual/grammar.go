package manual

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// OmitUnnamed returns an option that leaves out all commands of a grammar except those that args names. Without it, kong
// reads the tags of every flag of every command, which takes longer than many commands run. If args names no command,
// or asks for help, the option leaves nothing out. grammar is a pointer to a struct with a field for each command.
func OmitUnnamed(grammar any, args []string) kong.Option {
	t := reflect.TypeOf(grammar).Elem()
	var others []string
	found := false
	for f := range t.Fields() {
		switch {
		case f.Anonymous:
		case slices.Contains(args, cmp.Or(f.Tag.Get("name"), strings.ToLower(f.Name))):
			found = true
		default:
			others = append(others, f.Name)
		}
	}
	if !found || len(others) == 0 || slices.Contains(args, "--help") || slices.Contains(args, "-h") {
		return kong.IgnoreFields()
	}
	return kong.IgnoreFields(`^` + t.Name() + `\.(?:` + strings.Join(others, "|") + `)$`)
}
