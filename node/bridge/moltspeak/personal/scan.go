// Package personal finds personal data in text and JSON values by patterns, check digits and words of context (MS-40,
// MS-41).
//
// The package does not decide what happens with the data. Start with [Types].
package personal

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The types of personal data (MS-39).
const (
	TypeEmail     = "email"
	TypePhone     = "phone"
	TypeName      = "name"
	TypeAddress   = "address"
	TypeSSN       = "ssn" // government ids of any country
	TypeBirth     = "dob"
	TypeFinancial = "financial"
	TypeHealth    = "health"
	TypeLocation  = "location" // including IP addresses
	TypeOther     = "other"
)

// DataTypes lists the types in the order of the schema.
func DataTypes() []string {
	return []string{TypeEmail, TypePhone, TypeName, TypeAddress, TypeSSN, TypeBirth, TypeFinancial, TypeHealth, TypeLocation, TypeOther}
}

// Finding is the place of personal data in a text.
type Finding struct {
	Type       string
	Start, End int // bytes
}

// pattern finds candidates of one type. The finding is the first group, or the whole match in a pattern without a
// group. ok checks a candidate with the text around it; nil accepts every candidate.
type pattern struct {
	kind string
	re   expression
	ok   func(found, before, after string) bool
}

// upperWord matches a word that begins with a capital letter.
const upperWord = `\p{Lu}[\p{L}'’-]+`

// patterns are our own (MS-40, MS-41). Many of them also require a valid check digit or words of context.
var patterns = sync.OnceValue(func() []pattern {
	return []pattern{
		{TypeEmail, reWith("@", `[A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,5}[A-Za-z]{2,24}\b`), isMail},
		{TypeEmail, re(`(?i)\b[a-z0-9._-]{2,40} ?[\[(] ?at ?[\])] ?[a-z0-9-]{2,40}(?: ?[\[(] ?dot ?[\])] ?|\.)[a-z]{2,10}\b`), nil},

		{TypePhone, re(`(?:\+|\b00)[1-9]\d{0,2}[ .\-/]?(?:\(0?\d{1,4}\)[ .\-/]?)?(?:\d[ .\-/]?){6,12}\d\b`), isPhone},
		{TypePhone, re(`(?:\(\d{3}\) ?|\b\d{3}[.\- ])\d{3}[.\-]\d{4}\b`), isPhone},
		{TypePhone, re(`\b0\d{1,4}[ /\-]\d{3,4}[ \-]?\d{3,6}\b`), isPhone},
		{TypePhone, re(`\b0\d(?:[ .]\d\d){4}\b`), isPhone},
		{TypePhone, re(`(?i)\b(?:tel|telefon|telephone|phone|mobile|cell|fax|handy|whatsapp|tél|teléfono|telefono|telefoon|call(?: me| us| her| him)?(?: at| on)?|text me(?: at| on)?|reach(?:ed)?(?: me| her| him)?(?: at| on)?|ring me on|dial)(?: ?(?:number|no|nr|num)\b)?[.:]{0,2}(?: is)? {0,3}(\(?\+?\d[\d ().\-/]{5,18}\d)\b`), digitsBetween(7, 15)},

		{TypeFinancial, re(`\b\d(?:[ \-]?\d){12,18}\b`), isCardNumber},
		{TypeFinancial, re(`\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b`), func(s, _, _ string) bool { return isIBAN(s) }},
		{TypeFinancial, re(`(?i)\b(?:bank account|account|acct|konto|kontonummer|routing|cuenta|compte|conto)(?: ?(?:number|no|nr|num|#))?[.:#]{0,2}(?: is)? {0,2}(\d[\d \-]{5,20}\d)\b`), digitsBetween(6, 20)},
		{TypeFinancial, re(`(?i)\bsort code:? {0,2}(\d\d[- ]\d\d[- ]\d\d)\b`), nil},

		{TypeSSN, re(`\b(\d{3}-\d{2}-\d{4})\b`), func(s, before, _ string) bool { return isSSN(s) && !isBusiness(before) }},
		{TypeSSN, re(`(?i)\b(?:ssn|social security(?: number| no)?|social insurance(?: number)?|sin|tax id|tfn|tax file number|steuer-?id|steueridentifikationsnummer|bsn|pesel|passport(?: number| no)?|reisepass(?:nummer)?|passeport|pasaporte|passaporto|paspoort|driver'?s? licen[cs]e(?: number| no)?|führerschein(?:nummer)?|national id|personalausweis|ausweisnummer|id card)(?: ?(?:number|no|nr|#))?[.:#]{0,2}(?: is| lautet)? {0,2}([A-Z]{0,3}\d[A-Z0-9][A-Z0-9 \-]{4,14}[A-Z0-9])\b`), digitsBetween(5, 15)},
		{TypeSSN, re(`\b([ABCEGHJ-PRSTW-Z][ABCEGHJ-NPRSTW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D])\b`), nil}, // UK National Insurance number
		{TypeSSN, re(`\b([0-9XYZ]\d{7}-?[A-HJ-NP-TV-Z])\b`), func(s, _, _ string) bool { return isDNI(s) }},
		{TypeSSN, re(`\b([12] ?\d{2} ?(?:0[1-9]|1[0-2]|[2-4]\d) ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2})\b`), func(s, _, _ string) bool { return isNIR(s) }},
		{TypeSSN, re(`\b([A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z])\b`), nil}, // Italian codice fiscale
		{TypeSSN, re(`\b(\d{3}\.\d{3}\.\d{3}-\d{2})\b`), func(s, _, _ string) bool { return isCPF(s) }},
		{TypeSSN, re(`\b([2-9]\d{3} \d{4} \d{4})\b`), func(s, before, after string) bool {
			return isAadhaar(s) && !isBusiness(before) && !hasMoreDigits(before, after)
		}},
		{TypeSSN, re(`\b([A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z])\b`), nil},                                                                             // Indian PAN
		{TypeSSN, re(`\b(\d{6}[-+]\d{4})\b`), func(s, before, _ string) bool { return hasDate(s) && passesLuhn(digits(s)) && !isBusiness(before) }}, // Swedish personal number

		{TypeBirth, re(`(?i)\b(?:born\b|dob\b|d\.o\.b\.|date of birth\b|birth ?da(?:te|y)\b|geboren\b|geb\.|geburtsdatum\b|née?\b|date de naissance\b|fecha de nacimiento\b|nacid[oa]\b|data di nascita\b|nat[oa] il\b|geboortedatum\b)[^\d\n]{0,20}(` + datePattern + `)`), nil},

		{TypeAddress, re(`(?i)\b(\d{1,5}[a-z]?,? (?:[NSEW]\.? )?(?:[\p{L}\d][\p{L}\d'.-]*,? ){1,3}(?:street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|terrace|crescent|close|square|parkway|pkwy|highway|hwy)\b)`), isStreet},
		{TypeAddress, re(`(\p{Lu}[\p{L}.-]{1,30}(?:straße|strasse|str\.|weg|platz|allee|gasse|ring|damm|ufer|straat|laan|plein|gracht|kade|vägen|gatan|gata|gade|vej)\.? \d{1,4} ?[a-z]?)\b`), nil},
		{TypeAddress, re(`(\p{Lu}[\p{L}-]{2,30} (?:Straße|Strasse|Str\.|Weg|Platz|Allee|Ring|Damm|Ufer) \d{1,4} ?[a-z]?)\b`), nil},
		{TypeAddress, re(`(?i)\b(\d{1,4}(?: ?bis| ?ter)?,? (?:rue|avenue|boulevard|place|chemin|impasse|quai|allée|route|cours) (?:de la |de l'|du |des |de |d')?[\p{L}][\p{L}'-]+)`), nil},
		{TypeAddress, re(`\b((?:Calle|C/|Avda\.?|Avenida|Plaza|Paseo|Rua|Via|Viale|Piazza|Corso|Largo|ul\.|ulica|aleja) ?(?:\p{L}[\p{L}'.-]*,? ){1,5}(?:n\.?º? ?)?\d{1,4})\b`), nil},
		{TypeAddress, re(`(?i)\b(p\.?o\.? box \d{1,6})\b`), nil},
		{TypeAddress, re(`\b([A-Z]{1,2}\d[A-Z\d]? \d[ABD-HJLNP-UW-Z]{2})\b`), func(s, before, _ string) bool { return !isBusiness(before) }},

		{TypeName, re(`\b(?:Mr|Mrs|Ms|Mx|Dr|Prof|Herr|Frau|Mme|Mlle|Monsieur|Madame|Señora?|Sr|Sra|Signora?|Sig|Dhr|Mevr|Pan|Pani)\b\.? (?:\p{Lu}\. ?){0,2}(` + upperWord + `(?: ` + upperWord + `){0,2})`), isPersonName},
		{TypeName, re(`\b(?i:my name is|(?:full|first|last|customer|patient|employee|client|contact|guest|tenant|passenger|applicant|cardholder|account holder|emergency contact)(?:'s)? name(?: is|:)|customer:|patient:|employee:|passenger:|applicant:|tenant:|contact:|contact person:|cardholder:|emergency contact:|attn:|signed(?: by)?:?|name:|nom ?:|nombre:|nome:|naam:|ich heiße|ich bin|je m'appelle|me llamo|mi chiamo|mein name ist|sincerely,|kind regards,|best regards,|regards,|cheers,|thanks,|this is|i am|i'm|named|called|spoke with|speak to|meet with|met with|meeting with|lunch with|ask for|on behalf of|employee|patient|tenant|passenger)\s{1,3}(` + upperWord + `(?: (?:\p{Lu}\.|van|von|de|der|da|di|la|bin|al))*(?: ` + upperWord + `){1,2})`), isPersonName},

		{TypeHealth, re(`(?i)\b((?:was |been |is |got |were )?diagnosed (?:with|as) \p{L}+|suffer(?:s|ed|ing)? from \p{L}+|tested positive for \p{L}+|hiv[- ]positive|blood type:? (?:a|b|ab|o)(?:[+\-]| positive| negative)|allergic to \p{L}+|prescribed \p{L}+|is pregnant|weeks pregnant|(?:medical record|mrn)(?: number| no)?[.:#]{0,2} ?\d{4,}|icd-?10:? [a-tv-z]\d\d(?:\.\d{1,2})?|underwent (?:\p{L}+ )?(?:surgery|chemotherapy|transplant|biopsy)|(?:takes|taking|started on) (?:insulin|metformin|sertraline|prozac|lithium|methadone|warfarin|antidepressants)|undergoing (?:chemotherapy|dialysis|treatment for \p{L}+)|(?:leidet an|diagnostiziert mit|allergisch gegen) \p{L}+|diagnose: \p{L}+|diagnosis: \p{L}+|(?:has|have|with) (?:(?:type [12] |stage \p{L}+ |breast |lung |chronic |severe )?(?:diabetes|cancer|epilepsy|asthma|depression|hepatitis|leukemia|schizophrenia|alzheimer|parkinson|dementia))\p{L}*|souffre d[e']\s?\p{L}+|alérgic[oa] a \p{L}+)`), isIllness},

		{TypeLocation, re(`(-?\d{1,2}\.\d{4,10},? ?\s?-?\d{1,3}\.\d{4,10})\b`), isCoordinates},
		{TypeLocation, re(`(?i)\b(?:ip|ip address|ip-adresse|client|visitor|remote|login from|logged in from|connected from|signed in from|from host|user at)[ :=]{1,3}(?:is |address )?(\d{1,3}(?:\.\d{1,3}){3})\b`), func(s, _, _ string) bool { return isPublicIP(s) }},
		{TypeLocation, re(`(?i)\b(?:ip|ip address|client|visitor|remote|login from|logged in from)[ :=]{1,3}([0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7})`), func(s, _, _ string) bool { return isPublicIP(s) }},
	}
})

const datePattern = `\d{1,2}[./\- ](?:\d{1,2}|\p{L}{3,9})[./\- ](?:\d{4}|\d{2})|\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{1,2}\.? \p{L}{3,9},? \d{4}|\p{L}{3,9}\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}`

// MaxFindings bounds the findings of one type in one text. Rejected candidates do not count: otherwise many of them
// could hide a finding at the end of the text.
const MaxFindings = 200

// Scan finds personal data in a text, up to [MaxFindings] places of each type.
func Scan(text string) []Finding {
	var out []Finding
	for _, p := range patterns() {
		for _, at := range p.re.findAll(text) {
			start, end := at[0], at[1]
			if len(at) > 2 && at[2] >= 0 {
				start, end = at[2], at[3]
			}
			if p.ok == nil || p.ok(text[start:end], text[max(0, start-40):start], text[end:min(len(text), end+20)]) {
				out = append(out, Finding{p.kind, start, end})
			}
		}
	}
	return dropOverlaps(out)
}

// dropOverlaps drops findings that overlap another one of the same type. A phone number or address also gives way to
// any stronger type, for example to a card number with the same digits, and every weaker type to a date of birth.
// dropOverlaps keeps at most MaxFindings of each type.
func dropOverlaps(found []Finding) []Finding {
	strength := []string{TypeEmail, TypeFinancial, TypeSSN, TypeBirth, TypeLocation, TypePhone, TypeAddress, TypeName, TypeHealth}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return slices.Index(strength, a.Type) - slices.Index(strength, b.Type)
	})
	var out []Finding
	kept := make(map[string]int)
	for _, f := range found {
		covered := slices.ContainsFunc(out, func(o Finding) bool {
			return f.Start < o.End && o.Start < f.End && (f.Type == o.Type || f.Type == TypePhone || o.Type == TypeBirth || f.Type == TypeAddress)
		})
		if !covered && kept[f.Type] < MaxFindings {
			kept[f.Type]++
			out = append(out, f)
		}
	}
	return out
}

// keyKinds are names of members that reveal the type of a string, for types that the string alone does not show.
var keyKinds = []struct {
	kind  string
	names []string
	ok    func(string) bool
}{
	{TypeName, []string{"name", "fullname", "firstname", "lastname", "givenname", "familyname", "surname", "customername", "patientname", "contactname"}, func(s string) bool { return personName().MatchString(s) }},
	{TypePhone, []string{"phone", "phonenumber", "mobile", "tel", "telephone", "cell", "fax"}, func(s string) bool { return digitsBetween(6, 15)(s, "", "") }},
	{TypeBirth, []string{"dob", "birthdate", "dateofbirth", "birthday", "geburtsdatum"}, func(s string) bool { return dateOnly().MatchString(s) }},
	{TypeSSN, []string{"ssn", "socialsecuritynumber", "passport", "passportnumber", "nationalid", "taxid", "driverslicense"}, func(s string) bool { return digitsBetween(5, 15)(s, "", "") }},
	{TypeFinancial, []string{"iban", "accountnumber", "bankaccount", "cardnumber", "routingnumber", "creditcard"}, func(s string) bool { return len(digits(s)) >= 6 }},
	{TypeAddress, []string{"street", "streetaddress", "homeaddress", "postaladdress", "addressline1"}, func(s string) bool { return strings.ContainsAny(s, "0123456789") }},
	{TypeHealth, []string{"diagnosis", "medication", "bloodtype", "allergies", "medicalcondition"}, func(s string) bool { return strings.TrimSpace(s) != "" }},
}

var (
	personName = sync.OnceValue(func() expression {
		return re(`^` + upperWord + `(?: (?:\p{Lu}\.|` + upperWord + `|van|von|de|der|da|di)){0,4}$`)
	})
	dateOnly = sync.OnceValue(func() expression { return re(`^(?:` + datePattern + `)$`) })

	// joinWords removes the separators in the name of a member: "date_of_birth" becomes "dateofbirth".
	joinWords = strings.NewReplacer("_", "", "-", "", " ", "")
)

// Types returns the types of personal data in the string leaves of v, in the order of the schema (MS-41). It ignores
// numbers, because people write personal data as strings.
func Types(v wire.Value) []string {
	found := make(map[string]bool)
	walk(v, "", func(key, text string) {
		for _, t := range LeafTypes(key, text) {
			found[t] = true
		}
	})
	var out []string
	for _, t := range DataTypes() {
		if found[t] {
			out = append(out, t)
		}
	}
	return out
}

// LeafTypes returns the types of personal data in a text, which may be the value of a member named key.
func LeafTypes(key, text string) []string {
	var out []string
	for _, f := range Scan(text) {
		out = append(out, f.Type)
	}
	key = strings.ToLower(joinWords.Replace(key))
	for _, k := range keyKinds {
		if len(text) <= 200 && slices.Contains(k.names, key) && k.ok(text) { // a longer text is prose
			out = append(out, k.kind)
		}
	}
	return out
}

func walk(v wire.Value, key string, leaf func(key, text string)) {
	if s, ok := v.Str(); ok {
		leaf(key, s)
		return
	}
	for e := range v.Elems() {
		walk(e, key, leaf)
	}
	for _, m := range v.Members() {
		walk(m.Value, m.Key, leaf)
	}
}

func isPublicIP(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.IsGlobalUnicast() && !a.IsPrivate()
}
