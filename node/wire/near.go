package wire

// Near returns the element of words that is most similar to word, or "" if each differs in more than two bytes and in
// more than a quarter of the bytes of word.
func Near(word string, words []string) string {
	best, distance := "", 1+max(2, len(word)/4)
	for _, w := range words {
		if n := editDistance(word, w); n < distance {
			best, distance = w, n
		}
	}
	return best
}

// editDistance returns the Levenshtein distance in bytes; our names are ASCII.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
