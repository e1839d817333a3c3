package catalogue

// Row adds an Operation to the catalogue, as the declarations of this package do.
var Row = row
