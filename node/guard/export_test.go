package guard

// Parse gives the tests the parser of verdicts.
var Parse = parse
