package personal

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func digits(s string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return r
		}
		return -1
	}, s)
}

// digitsBetween returns a check that accepts findings with low to high digits.
func digitsBetween(low, high int) func(found, before, after string) bool {
	return func(found, _, _ string) bool {
		n := len(digits(found))
		return low <= n && n <= high
	}
}

// passesLuhn reports whether the check digit of a card or government id is right.
func passesLuhn(d string) bool {
	sum := 0
	for i := range len(d) {
		n := int(d[len(d)-1-i] - '0')
		if i%2 == 1 {
			if n *= 2; n > 9 {
				n -= 9
			}
		}
		sum += n
	}
	return d != "" && sum%10 == 0
}

func isCardNumber(found, before, after string) bool {
	d := digits(found)
	issuer := d[0] >= '3' && d[0] <= '6' || d[0] == '2' && d[:2] >= "22" && d[:2] <= "27"
	return issuer && passesLuhn(d) && !hasMoreDigits(before, after) && !repeatsDigit(d) &&
		!strings.Contains(strings.ToLower(before), "tracking") && !strings.Contains(strings.ToLower(before), "imei")
}

// repeatsDigit reports whether d is one digit, repeated.
func repeatsDigit(d string) bool { return strings.Trim(d, d[:1]) == "" }

// isIBAN reports whether the length and the check digits of an IBAN are right (ISO 7064 mod 97-10).
func isIBAN(s string) bool {
	s = strings.ReplaceAll(s, " ", "")
	if len(s) < 15 || len(s) > 34 {
		return false
	}
	rest := 0
	for _, c := range s[4:] + s[:4] {
		switch {
		case '0' <= c && c <= '9':
			rest = (rest*10 + int(c-'0')) % 97
		default:
			rest = (rest*100 + int(c-'A') + 10) % 97
		}
	}
	return rest == 1
}

func isSSN(s string) bool {
	area, group, serial := s[:3], s[4:6], s[7:]
	return area != "000" && area != "666" && area[0] != '9' && group != "00" && serial != "0000"
}

// isDNI reports whether the letter of a Spanish DNI or NIE is right.
func isDNI(s string) bool {
	s = strings.ReplaceAll(s, "-", "")
	head := strings.NewReplacer("X", "0", "Y", "1", "Z", "2").Replace(s[:1])
	n, err := strconv.Atoi(head + s[1:8])
	return err == nil && "TRWAGMYFPDXBNJZSQVHLCKE"[n%23] == s[8]
}

// isNIR reports whether the key of a French NIR is right.
func isNIR(s string) bool {
	s = strings.ReplaceAll(s, " ", "")
	if len(s) != 15 {
		return false
	}
	body := strings.NewReplacer("2A", "19", "2B", "18").Replace(s[:13])
	n, err := strconv.ParseInt(body, 10, 64)
	key, keyErr := strconv.ParseInt(s[13:], 10, 64)
	return err == nil && keyErr == nil && 97-n%97 == key
}

// isCPF reports whether both check digits of a Brazilian CPF are right.
func isCPF(s string) bool {
	d := digits(s)
	for n := 9; n < 11; n++ {
		sum := 0
		for i := range n {
			sum += int(d[i]-'0') * (n + 1 - i)
		}
		if sum*10%11%10 != int(d[n]-'0') {
			return false
		}
	}
	return !repeatsDigit(d)
}

// verhoeffD and verhoeffP are the multiplication and permutation tables of the Verhoeff check digit.
var verhoeffD = [10][10]int{
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 2, 3, 4, 0, 6, 7, 8, 9, 5}, {2, 3, 4, 0, 1, 7, 8, 9, 5, 6}, {3, 4, 0, 1, 2, 8, 9, 5, 6, 7},
	{4, 0, 1, 2, 3, 9, 5, 6, 7, 8}, {5, 9, 8, 7, 6, 0, 4, 3, 2, 1}, {6, 5, 9, 8, 7, 1, 0, 4, 3, 2}, {7, 6, 5, 9, 8, 2, 1, 0, 4, 3},
	{8, 7, 6, 5, 9, 3, 2, 1, 0, 4}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0},
}

var verhoeffP = [8][10]int{
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 5, 7, 6, 2, 8, 3, 0, 9, 4}, {5, 8, 0, 3, 7, 9, 6, 1, 4, 2}, {8, 9, 1, 6, 0, 4, 3, 5, 2, 7},
	{9, 4, 5, 3, 1, 2, 6, 8, 7, 0}, {4, 2, 8, 6, 5, 7, 3, 9, 0, 1}, {2, 7, 9, 3, 8, 0, 6, 4, 1, 5}, {7, 0, 4, 6, 9, 1, 3, 2, 5, 8},
}

// isAadhaar reports whether the check digit of an Aadhaar number is right (Verhoeff).
func isAadhaar(s string) bool {
	d, c := digits(s), 0
	for i := range len(d) {
		c = verhoeffD[c][verhoeffP[i%8][d[len(d)-1-i]-'0']]
	}
	return c == 0
}

// hasDate reports whether an id begins with a possible date in the form YYMMDD, as Swedish ids do.
func hasDate(s string) bool {
	return s[2:4] >= "01" && s[2:4] <= "12" && s[4:6] >= "01" && s[4:6] <= "31"
}

// hasMoreDigits reports whether the digits of a finding continue in the text before or after it.
func hasMoreDigits(before, after string) bool {
	tail := strings.TrimRight(before, " -.")
	head := strings.TrimLeft(after, " -.")
	return len(before)-len(tail) <= 1 && tail != "" && isDigit(tail[len(tail)-1]) || len(after)-len(head) <= 1 && head != "" && isDigit(head[0])
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// businessWords come before numbers that identify things, such as orders, and not people.
var businessWords = []string{
	"order", "invoice", "ticket", "sku", "part", "ref", "reference", "tracking", "serial", "version", "build", "model", "isbn", "case", "case no",
	"article", "item", "batch", "po", "rma", "bestellung", "rechnung", "commande", "pedido", "job", "id", "release", "product", "parcel", "lot", "port", "issue", "doi", "issn", "catalog", "flight", "booking", "patent", "artikel", "bestellnummer", "vorgang", "licence key", "license key", "key", "checksum", "commit", "room", "error", "code", "step", "channel", "sensor", "device", "stock", "ean", "upc", "asin", "customer no", "session",
}

// isBusiness reports whether the words before a number show that it is an order, a version or the like.
func isBusiness(before string) bool {
	words := strings.FieldsFunc(strings.ToLower(before), func(r rune) bool { return strings.ContainsRune(" :#.,()=/\"'", r) })
	n := len(words)
	for i := max(0, n-3); i < n; i++ {
		if slices.Contains(businessWords, words[i]) {
			return true
		}
	}
	return n > 0 && strings.HasSuffix(words[n-1], "-") || strings.HasSuffix(before, "#")
}

// fileEndings are the endings of file names that look like mail addresses, such as logo@2x.png.
var fileEndings = []string{"png", "jpg", "jpeg", "svg", "gif", "webp", "js", "ts", "css", "json", "service", "local", "go", "py", "md", "txt"}

func isMail(found, before, after string) bool {
	ending := strings.ToLower(found[strings.LastIndexByte(found, '.')+1:])
	local, _, _ := strings.Cut(found, "@")
	switch {
	case slices.Contains(fileEndings, ending):
		return false
	case local == "git" || local == "noreply" || local == "no-reply":
		return false
	case strings.HasSuffix(before, "://") || strings.HasSuffix(before, ":") && strings.Contains(before, "://"):
		return false // user info of a URL
	}
	return !strings.HasPrefix(after, "/") || !strings.Contains(before, "ssh") // not the target of an ssh URL or command
}

func isPhone(found, before, after string) bool {
	d := digits(found)
	if len(d) < 8 || len(d) > 15 || hasMoreDigits(before, after) || isBusiness(before) {
		return false
	}
	last, _ := utf8.DecodeLastRuneInString(before)
	isPartOfOther := strings.ContainsRune("-_./=#$€", last) // the end of an id, a path or an amount
	isPercentage := strings.HasPrefix(strings.TrimLeft(after, " "), "%")
	return !isPartOfOther && !isPercentage && strings.Trim(d, "0") != ""
}

// notStreets are words that occur between a number and a word such as "drive" in other texts than addresses.
var notStreets = []string{"file", "version", "step", "items", "times", "minutes", "hours", "days", "seconds", "percent", "users", "requests", "test", "tests", "and", "or", "the", "a", "hard", "disk", "points", "votes", "people", "pages", "ms", "of", "in", "at", "to", "for", "is", "new"}

func isStreet(found, before, _ string) bool {
	words := strings.Fields(strings.ToLower(found))
	for _, w := range words[1 : len(words)-1] {
		if slices.Contains(notStreets, strings.Trim(w, ",.")) {
			return false
		}
	}
	last := words[len(words)-1]
	// Everyday words need a name with a capital letter before them.
	if len(last) <= 2 || last == "close" || last == "drive" || last == "court" || last == "square" {
		first, _ := utf8.DecodeRuneInString(strings.Fields(found)[1])
		return unicode.IsUpper(first)
	}
	return !strings.HasSuffix(before, ".") // not the decimals of a number, as in "2.5 main road"
}

// notNames are capitalized words that follow words of context and are not names.
var notNames = []string{
	"pepper", "team", "support", "service", "services", "success", "department", "api", "inc", "ltd", "gmbh", "corp", "company", "group", "office", "desk", "sales",
	"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "january", "february", "march", "april", "may", "june", "july", "august",
	"september", "october", "november", "december", "strange", "server", "project", "system", "street", "bot", "agent", "python", "google", "microsoft",
	"amazon", "kubernetes", "docker", "linux", "windows", "the", "not", "error", "test", "engineering", "marketing", "finance", "legal", "board", "committee", "city", "new", "north", "south", "united", "san", "los", "portal", "handbook", "records", "data", "management", "relations", "evaluation", "assistance", "web", "robot", "who", "no", "bank", "protocol", "network", "framework", "cloud", "studio",
	"code", "claude", "gpt", "visual", "apache", "continuous", "open", "machine", "black", "great", "big", "operation", "windows,",
}

func isPersonName(found, _, _ string) bool {
	for w := range strings.FieldsSeq(strings.ToLower(found)) {
		if slices.Contains(notNames, strings.Trim(w, ".,")) {
			return false
		}
	}
	return strings.ToUpper(found) != found
}

// notIllnesses end findings such as "suffers from high" (load), which are not about health.
var notIllnesses = []string{"from high", "from the", "from a", "from poor", "from low", "from slow", "from bad", "from memory", "from latency", "from performance", "from packet", "from frequent", "to the", "from an", "with a", "as a", "from technical"}

func isIllness(found, before, _ string) bool {
	low := strings.ToLower(found)
	for _, n := range notIllnesses {
		if strings.HasSuffix(low, " "+n) && !strings.Contains(low, "allergic") {
			return false
		}
	}
	for _, thing := range []string{"server", "cluster", "service", "application", "query", "bug", "system", "database", "network", "disk", "node "} {
		if strings.Contains(strings.ToLower(before), thing) {
			return false
		}
	}
	return true
}

func isCoordinates(found, before, after string) bool {
	parts := strings.FieldsFunc(found, func(r rune) bool { return r == ',' || r == ' ' })
	if len(parts) != 2 || hasMoreDigits(before, "") || isBusiness(before) {
		return false
	}
	lat, err := strconv.ParseFloat(parts[0], 64)
	long, longErr := strconv.ParseFloat(parts[1], 64)
	// A comma after them continues a longer list of numbers.
	return err == nil && longErr == nil && -90 <= lat && lat <= 90 && -180 <= long && long <= 180 && strings.Contains(found, ",") && !strings.HasPrefix(after, ",")
}
