package signing

// Form is an encoding of a JSON tree that a signature may cover (AM-14). In every form, different trees have different
// encodings, so a signature over any form proves the content of a message.
type Form uint8

// The forms, in the order in which verification tries them.
const (
	JCS   Form = iota // RFC 8785; the only one of AM-14 that we sign
	Plain             // keys sorted by code point, number tokens unchanged, minimal escapes
	ES                // like JCS, but integer-like keys first, in numeric order, as in ECMAScript objects
	ASCII             // like Plain, with escapes for everything except printable ASCII: the default of Python
	HTML              // like Plain, with escapes for < > & U+2028 U+2029: the default of Go

	Python // like ASCII, with numbers as Python writes them: MoltSpeak's only form (MS-13); never tried for AgentMesh
)

var formNames = [...]string{"jcs", "plain", "es", "ascii", "html", "python"}

func (f Form) String() string { return formNames[f] }

// Forms returns the closed list of AM-14, in the order in which verification tries the forms.
func Forms() []Form { return []Form{JCS, Plain, ES, ASCII, HTML} }
